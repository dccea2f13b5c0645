"""Makes bubblewrap sandboxes, and knows every one it made."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
import weakref
from dataclasses import dataclass, replace
from pathlib import Path

from . import seccomp
from .arguments import base_env, check_spec, rlimits, sandbox_arguments
from .bwrap import find_bubblewrap
from .cgroups import Cgroups, detect
from .channel import Channel
from .errors import InvalidSpec, SandboxGone, SandboxStartFailed
from .inside import wire
from .interpreter import Interpreter, find_interpreter
from .launch import Launcher, Process, readable
from .owners import Owner, Record, Records, default_folder, group_name, start_time, sweep
from .probe import Capabilities, check_machine, describe, nproc_is_per_sandbox
from .protocol import SandboxSpec
from .relay import Relay, parse_address
from .sandbox import BubblewrapSandbox
from .shelf import make_shelf

__all__ = ["BubblewrapProvider"]

_START_S = 20.0


@dataclass(frozen=True, slots=True)
class _Machine:
    """What was found out once about this machine."""

    launcher: Launcher
    interpreter: Interpreter
    cgroups: Cgroups
    filter: bytes | None
    owner: Owner

    @property
    def capabilities(self) -> Capabilities:
        return describe(self.launcher, self.cgroups, self.interpreter.path, self.filter is not None)


class BubblewrapProvider:
    """Sandboxes on this machine, each with namespaces, a seccomp filter, limits and an exec agent of its own.

    Args:
        runtime_dir: private folder for the records of live sandboxes; by default one of this user, in memory
            where that is possible (``owners.default_folder``).
        interpreter: which Python runs the agent inside: ``auto``, ``system`` or ``base``.
        use_cgroups: False holds limits by rlimits alone.
        concurrency: how many sandboxes may be starting at the same time.

    Sandboxes end with the process that made them, however that ends.
    """

    def __init__(
        self,
        *,
        runtime_dir: Path | None = None,
        interpreter: str = "auto",
        use_cgroups: bool = True,
        concurrency: int | None = None,
    ) -> None:
        if interpreter not in ("auto", "system", "base"):
            raise InvalidSpec(f"interpreter={interpreter!r}: one of auto, system, base")
        self._records = Records(runtime_dir or default_folder())
        self._choice = interpreter
        self._use_cgroups = use_cgroups
        self._starting = asyncio.Semaphore(concurrency or 2 * (os.cpu_count() or 1))
        self._probing = asyncio.Lock()
        self._machine: _Machine | None = None
        self._sandboxes: dict[str, BubblewrapSandbox] = {}
        self._cleanups: set[asyncio.Task[None]] = set()
        self._closed = False
        # A process that forgets to close() kills its sandboxes at exit all the same.
        weakref.finalize(self, _abandon, self._sandboxes)

    async def probe(self) -> Capabilities:
        """Find out, once, what this machine can do, and remove what dead owners left.

        Raises:
            BubblewrapMissing, UserNamespacesForbidden, ProviderUnavailable: each says how to fix it.
        """
        return (await self._prepare()).capabilities

    async def _prepare(self) -> _Machine:
        async with self._probing:
            if self._machine is None:
                self._machine = await asyncio.to_thread(self._look)
            return self._machine

    def _look(self) -> _Machine:
        interpreter = find_interpreter(self._choice)
        launcher = Launcher(find_bubblewrap(), interpreter.path)
        check_machine(launcher)
        self._records.prepare()
        self._records.reap()
        cgroups = detect() if self._use_cgroups else Cgroups(0, {})
        sweep(cgroups.parents.values())
        return _Machine(launcher, interpreter, cgroups, seccomp.program(), Owner.this_process())

    async def create(self, spec: SandboxSpec) -> BubblewrapSandbox:
        """A ready sandbox; on any failure or cancellation nothing is left behind.

        Raises:
            InvalidSpec: a field of ``spec``, named, with the fix.
            LimitNotEnforceable: a limit that nothing here can hold.
            SandboxStartFailed: with what bubblewrap said.
            ProviderUnavailable: no sandbox can be made on this machine.
        """
        check_spec(spec)
        machine = await self._prepare()
        async with self._starting:
            if self._closed:
                raise SandboxStartFailed("the provider is closed")
            sandbox = self._launch(machine, spec)
            try:
                await self._connect(machine, sandbox)
                if self._closed:
                    raise SandboxStartFailed("the provider was closed meanwhile")
            except BaseException:
                await self._clean_up(sandbox)
                raise
        sandbox.renew(spec.ttl_s)
        return sandbox

    def assign(self, sandbox: BubblewrapSandbox, owner: str, ttl_s: float) -> None:
        """Give a sandbox that was made ahead of time its owner and its time to live."""
        sandbox.record = replace(sandbox.record, label=owner, ttl_s=ttl_s, created=time.time())
        sandbox.renew(ttl_s)
        asyncio.get_running_loop().call_soon(self._record_again, sandbox)

    def _record_again(self, sandbox: BubblewrapSandbox) -> None:
        if sandbox.id in self._sandboxes:
            self._records.put(sandbox.record)

    async def close(self) -> None:
        """Terminate every sandbox that this provider made; it makes no more."""
        self._closed = True
        ends = [sandbox.terminate() for sandbox in list(self._sandboxes.values())]
        results = await asyncio.gather(*ends, *self._cleanups, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        self._records.tidy()

    def live(self) -> list[str]:
        """Ids of the sandboxes that exist now."""
        return sorted(self._sandboxes)

    # -- steps of create --------------------------------------------------------------------------------
    def _launch(self, machine: _Machine, spec: SandboxSpec) -> BubblewrapSandbox:
        """Group, record and process; no await in between, so that a cancellation cannot fall in."""
        sources = [*(mount.source for mount in spec.mounts), *(s for s, _ in machine.interpreter.mounts)]
        shelf = make_shelf(sources, drops_root=machine.launcher.drops_root)
        sandbox_id = f"sb-{secrets.token_hex(6)}"
        name = group_name(machine.owner, sandbox_id)
        record = Record(
            id=sandbox_id, owner=machine.owner, label=spec.owner, created=time.time(), ttl_s=spec.ttl_s,
            cgroups=tuple(str(folder) for folder in machine.cgroups.folders(name, spec.limits)),
        )  # fmt: skip
        self._records.put(record)  # first: what follows is found by the reaper even if we die here
        groups: tuple[Path, ...] = ()
        try:
            groups = machine.cgroups.make(name, spec.limits)
            arguments = sandbox_arguments(spec, machine.interpreter, machine.filter, shelf.places)
            process = machine.launcher.start(arguments, shelf.outer)
        except BaseException as error:
            for folder in groups:
                folder.rmdir()
            self._records.drop(sandbox_id)
            if isinstance(error, OSError):
                raise SandboxStartFailed(f"{error.filename or 'start'}: {error.strerror or error}") from error
            raise
        env = base_env(spec, machine.interpreter)
        sandbox = BubblewrapSandbox(record, spec, env, process, groups, self._ended)
        self._sandboxes[sandbox_id] = sandbox
        return sandbox

    async def _connect(self, machine: _Machine, sandbox: BubblewrapSandbox) -> None:
        """Process 1 goes into its group, gets its configuration, and answers that it is ready."""
        spec, process = sandbox.spec, sandbox.process
        pid = await process.learn_inner(_START_S)
        try:
            machine.cgroups.enter(sandbox.groups, pid)
        except ProcessLookupError:
            raise SandboxStartFailed(await process.last_words()) from None
        started = start_time(pid) or 0
        sandbox.record = replace(sandbox.record, pid=pid, started=started)
        self._records.put(sandbox.record)
        port, listener = await _ready(process, self._configuration(machine, spec))
        relay = None
        try:
            if spec.relay is not None:
                if listener is None:
                    raise SandboxStartFailed("the agent inside gave no relay socket")
                relay = Relay(parse_address(spec.relay))
                await relay.start(listener)
            channel = await Channel.open(process.control, sandbox.channel_ended)
        except BaseException:
            # Not the sandbox's yet, so its end would not reach them.
            if relay is not None:
                relay.stop()
            if listener is not None:
                listener.close()
            raise
        sandbox.attach(channel, relay, port if relay else None)

    def _configuration(self, machine: _Machine, spec: SandboxSpec) -> bytes:
        cgroups = machine.cgroups
        limits = rlimits(
            spec.limits,
            memory=not cgroups.enforces("memory"),
            pids=not cgroups.enforces("pids") and nproc_is_per_sandbox(machine.launcher.drops_root),
        )
        pairs = [b"%d" % number for item in limits.items() for number in item]
        relay = b"0" if spec.relay is None else b"1"
        return wire.frame(wire.CONFIG, 0, wire.pack(os.fsencode(spec.workdir), relay, *pairs))

    async def _clean_up(self, sandbox: BubblewrapSandbox) -> None:
        """Terminate in a task of its own: a second cancellation must not stop the first one's cleaning."""
        task = asyncio.ensure_future(sandbox.terminate())
        self._cleanups.add(task)
        task.add_done_callback(self._cleanups.discard)
        await asyncio.shield(task)

    def _ended(self, sandbox: BubblewrapSandbox) -> None:
        self._sandboxes.pop(sandbox.id, None)
        self._records.drop(sandbox.id)


async def _ready(process: Process, configuration: bytes) -> tuple[int, socket.socket | None]:
    """Wait for the agent's first frame; with a relay it brings a listening socket of the inside."""
    with contextlib.suppress(BrokenPipeError):  # it ended already: told below
        process.control.sendall(configuration)
    if not await readable(process.control.fileno(), _START_S):
        raise SandboxStartFailed(f"the agent inside was not ready within {_START_S} s")
    try:
        data, fds, _, _ = socket.recv_fds(process.control, wire.HEADER.size, 1)
    except ConnectionError:
        data, fds = b"", []
    if len(data) != wire.HEADER.size or wire.HEADER.unpack(data)[1] != wire.READY:
        for fd in fds:
            os.close(fd)
        raise SandboxStartFailed(f"the agent inside did not start: {await process.last_words()}")
    if not fds:
        return wire.RELAY_PORT, None
    listener = socket.socket(fileno=fds[0])
    return int(listener.getsockname()[1]), listener


def _abandon(sandboxes: dict[str, BubblewrapSandbox]) -> None:
    for sandbox in list(sandboxes.values()):
        with contextlib.suppress(OSError, SandboxGone):
            sandbox.abandon()
