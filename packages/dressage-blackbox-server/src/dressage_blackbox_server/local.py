"""An executor for this machine: for use inside an image that is itself the sandbox. It contains nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dressage_blackbox_server.errors import ExecutorError, LaunchError
from dressage_blackbox_server.executor import ExecResult
from dressage_blackbox_server.output import BoundedOutput
from dressage_blackbox_server.waiting import uninterrupted

TAG = "DRESSAGE_TURN_TAG"
"""A variable that marks the processes of one run, to find those that left its tree."""

_DRAIN_S = 1.0


class LocalExecutor:
    """Runs programs as children of this process, each in a session of its own.

    The program gets ``base_env`` (nothing of this process's environment unless it is in there) and the
    turn's. When the program has ended, timed out or been cancelled, what is left of it is killed: its process
    group, its descendants, and whatever still carries the run's tag in its environment. A process that both
    left the tree and cleared its environment escapes; containing that is a sandbox's matter.
    """

    def __init__(self, base_env: Mapping[str, str]) -> None:
        self._base_env = dict(base_env)

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        stdin: bytes = b"",
        timeout_s: float,
        output_bytes: int,
    ) -> ExecResult:
        """Run ``argv``; see :class:`Executor`."""
        tag = uuid.uuid4().hex
        program = await self._start(argv, {**self._base_env, **env, TAG: tag}, cwd, output_bytes)
        timed_out = False
        try:
            program.give(stdin)
            async with asyncio.timeout(timeout_s):
                await program.exited.wait()
        except TimeoutError:
            timed_out = True
        finally:
            await _end(program, tag)
        return ExecResult(program.exit_code(), program.out.value(), program.err.value(), timed_out)

    async def _start(self, argv: Sequence[str], env: Mapping[str, str], cwd: str, limit: int) -> _Program:
        pipe = asyncio.subprocess.PIPE
        if not argv:
            raise LaunchError("argv is empty: nothing to run")
        loop = asyncio.get_running_loop()
        starting = asyncio.create_task(
            loop.subprocess_exec(
                lambda: _Program(limit),
                *argv, stdin=pipe, stdout=pipe, stderr=pipe, env=dict(env), cwd=cwd, start_new_session=True,
            )
        )  # fmt: skip
        try:
            _, program = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The child may exist already: it is ended before the cancellation goes on.
            await asyncio.wait({starting})
            if not starting.cancelled() and starting.exception() is None:
                await _end(starting.result()[1], env[TAG])
            raise
        except (OSError, ValueError) as error:
            raise LaunchError(f"{argv[0]!r} could not be started in {cwd}: {error}") from error
        return program

    async def write(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        """Write a whole file; see :class:`Executor`."""
        try:
            await asyncio.to_thread(_write_file, Path(path), data, mode)
        except OSError as error:
            raise ExecutorError(f"{path} could not be written: {error}") from error


def _write_file(path: Path, data: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


class _Program(asyncio.SubprocessProtocol):
    """A running child: what it printed so far, and events of its end."""

    def __init__(self, limit: int) -> None:
        self.out = BoundedOutput(limit)
        self.err = BoundedOutput(limit)
        self.exited = asyncio.Event()
        self.drained = asyncio.Event()
        """Standard output and error have ended: nobody holds them any more."""
        self._open = {1, 2}
        self._transport: asyncio.SubprocessTransport | None = None

    @property
    def transport(self) -> asyncio.SubprocessTransport:
        """Set once the child has been started."""
        assert self._transport is not None
        return self._transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The child exists."""
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport

    def give(self, stdin: bytes) -> None:
        """Write all of standard input, and end it. A child that never reads it is no error."""
        pipe = self.transport.get_pipe_transport(0)
        assert isinstance(pipe, asyncio.WriteTransport)
        pipe.write(stdin)
        pipe.close()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """More output."""
        (self.out if fd == 1 else self.err).add(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """A pipe has ended."""
        self._open.discard(fd)
        if not self._open:
            self.drained.set()

    def process_exited(self) -> None:
        """The child has ended and was reaped."""
        self.exited.set()

    def exit_code(self) -> int:
        """As a shell says it. Raises :class:`ExecutorError` where nobody saw the end."""
        code = self.transport.get_returncode()
        if code is None:
            raise ExecutorError(f"process {self.transport.get_pid()} has no exit code")
        return 128 - code if code < 0 else code


async def _end(program: _Program, tag: str) -> None:
    """Kill what is left of the run, reap the leader, and close the pipes; not interrupted by cancellation."""
    await uninterrupted(asyncio.create_task(_end_all(program, tag)))


async def _end_all(program: _Program, tag: str) -> None:
    await asyncio.to_thread(kill_tree, program.transport.get_pid(), tag)
    await program.exited.wait()
    with contextlib.suppress(TimeoutError):  # an escaped process may hold the pipes for ever
        async with asyncio.timeout(_DRAIN_S):
            await program.drained.wait()
    program.transport.close()


def kill_tree(root: int, tag: str) -> None:
    """SIGKILL ``root``'s process group, its descendants and all that carry ``tag``, until none is found."""
    seen: set[int] = set()
    while fresh := [pid for pid in _members(root, tag) if pid not in seen]:
        seen.update(fresh)
        for pid in fresh:
            _signal(os.kill, pid, signal.SIGSTOP)  # stopped, it makes no more children while we look
    _signal(os.killpg, root, signal.SIGKILL)
    for pid in seen:
        _signal(os.kill, pid, signal.SIGKILL)


def _signal(send: Callable[[int, int], None], pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        send(pid, number)


def _members(root: int, tag: str) -> list[int]:
    """Pids whose chain of parents leads to ``root``, or whose environment holds the tag, from /proc."""
    mark = f"{TAG}={tag}".encode()
    children: dict[int, list[int]] = {}
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(errors="replace")
            marked = mark in (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended meanwhile, or is another user's
        pid, parent = int(entry.name), int(stat.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(pid)
        if marked and pid != root:
            found.add(pid)
    front = [root, *found]
    while front:
        front = [child for pid in front for child in children.get(pid, []) if child not in found]
        found.update(front)
    return sorted(found)
