"""An executor for this machine: for use inside an image that is itself the sandbox. It contains nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from dressage_blackbox_server.errors import ExecutorError, LaunchError
from dressage_blackbox_server.executor import ExecResult
from dressage_blackbox_server.output import BoundedOutput

_DRAIN_S = 1.0


class LocalExecutor:
    """Runs programs as children of this process, each in a session of its own.

    The program gets ``base_env`` (nothing of this process's environment unless it is in there) and the
    turn's. When the program has ended, timed out or been cancelled, its whole tree is killed: its process
    group and every descendant, also those that made a session of their own. Only a process that both left
    the tree (its parent died) and the group escapes; containing that is a sandbox's matter.
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
        process = await self._start(argv, {**self._base_env, **env}, cwd)
        out, err = BoundedOutput(output_bytes), BoundedOutput(output_bytes)
        streams = [
            asyncio.create_task(_feed(process, stdin)),
            asyncio.create_task(_drain(process.stdout, out)),
            asyncio.create_task(_drain(process.stderr, err)),
        ]
        timed_out = False
        try:
            async with asyncio.timeout(timeout_s):
                await process.wait()
        except TimeoutError:
            timed_out = True
        finally:
            await _end_tree(process, streams)
        return ExecResult(_exit_code(process), out.value(), err.value(), timed_out)

    async def _start(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str
    ) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        if not argv:
            raise LaunchError("argv is empty: nothing to run")
        starting = asyncio.create_task(
            asyncio.create_subprocess_exec(
                *argv, stdin=pipe, stdout=pipe, stderr=pipe, env=dict(env), cwd=cwd, start_new_session=True
            )
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The child may exist already: it is ended before the cancellation goes on.
            await asyncio.wait({starting})
            if not starting.cancelled() and starting.exception() is None:
                await _end_tree(starting.result(), [])
            raise
        except (OSError, ValueError) as error:
            raise LaunchError(f"{argv[0]!r} could not be started in {cwd}: {error}") from error

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


async def _feed(process: asyncio.subprocess.Process, stdin: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may end without reading
        process.stdin.write(stdin)
        await process.stdin.drain()
    process.stdin.close()


async def _drain(stream: asyncio.StreamReader | None, into: BoundedOutput) -> None:
    assert stream is not None
    while chunk := await stream.read(65536):
        into.add(chunk)


async def _end_tree(process: asyncio.subprocess.Process, streams: list[asyncio.Task[None]]) -> None:
    """Kill what is left of the tree, reap the leader, and close the streams. Bounded in time."""
    kill_tree(process.pid)
    reaping = asyncio.create_task(process.wait())
    cancelled: asyncio.CancelledError | None = None
    for tasks, seconds in (({reaping}, None), (set(streams), _DRAIN_S)):
        while waiting := {t for t in tasks if not t.done()}:
            try:
                await asyncio.wait(waiting, timeout=seconds)
            except asyncio.CancelledError as error:
                cancelled = error
            if seconds is not None:
                break
    for task in streams:
        task.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    if cancelled is not None:
        raise cancelled


def _exit_code(process: asyncio.subprocess.Process) -> int:
    code = process.returncode
    if code is None:
        raise ExecutorError(f"process {process.pid} has no exit code")
    return 128 - code if code < 0 else code


def kill_tree(root: int) -> None:
    """SIGKILL ``root``'s process group and every descendant of it, until none is left to be found."""
    seen: set[int] = set()
    while fresh := [pid for pid in descendants(root) if pid not in seen]:
        seen.update(fresh)
        for pid in fresh:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGSTOP)  # stopped, it makes no more children while we look
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(root, signal.SIGKILL)
    for pid in seen:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def descendants(root: int) -> list[int]:
    """Pids whose chain of parents leads to ``root``, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(errors="replace")
        except OSError:
            continue  # it ended meanwhile
        parent = int(stat.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    front = [root]
    while front:
        below = [child for pid in front for child in children.get(pid, [])]
        found.extend(below)
        front = below
    return found
