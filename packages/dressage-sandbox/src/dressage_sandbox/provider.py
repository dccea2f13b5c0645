"""Makes bubblewrap sandboxes, and knows every one it made."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
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
from .handshake import START_S, ready, servers_of
from .inside import wire
from .interpreter import Interpreter, find_interpreter
from .launch import Launcher
from .owners import (
    Owner,
    Record,
    Records,
    boot_time,
    default_folder,
    group_name,
    snapshot_name,
    start_time,
    sweep,
)
from .probe import Capabilities, check_machine, describe, nproc_is_per_sandbox
from .protocol import Feature, SandboxSpec, Snapshot
from .roots import Rooted, Roots
from .sandbox import BubblewrapSandbox
from .shelf import Overlay, make_shelf

__all__ = ["BubblewrapProvider"]

_ARCHIVE_ROOM = 16 << 20


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
        self._snapshots: dict[str, Path] = {}
        self._roots = Roots(self._records.folder)
        self._cleanups: set[asyncio.Task[None]] = set()
        self._closed = False
        # A process that forgets to close() kills its sandboxes at exit all the same.
        weakref.finalize(self, _abandon, self._sandboxes)

    @property
    def features(self) -> frozenset[Feature]:
        """What it can do."""
        return frozenset(Feature)

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
        if spec.snapshot is not None:
            self._archive_of(spec.snapshot)
        machine = await self._prepare()
        rooted = None
        if spec.root is not None:
            rooted = await asyncio.to_thread(
                self._roots.of, spec, machine.interpreter, machine.owner, machine.launcher
            )
        async with self._starting:
            if self._closed:
                raise SandboxStartFailed("the provider is closed")
            sandbox = self._launch(machine, spec, rooted)
            try:
                await self._connect(machine, sandbox)
                archive = self._archive_of(spec.snapshot) if spec.snapshot is not None else None
                archive = rooted.archive if archive is None and rooted is not None else archive
                if archive is not None:
                    await sandbox.unpack(archive, spec.workdir)
                if self._closed:
                    raise SandboxStartFailed("the provider was closed meanwhile")
            except BaseException:
                await self._clean_up(sandbox)
                raise
        sandbox.arm(spec.ttl_s)
        return sandbox

    def assign(self, sandbox: BubblewrapSandbox, owner: str, ttl_s: float) -> None:
        """Give a sandbox that was made ahead of time its owner and its time to live."""
        sandbox.record = replace(sandbox.record, label=owner, ttl_s=ttl_s, created=time.time())
        sandbox.set_expiry(ttl_s)

    def note(self, sandbox: BubblewrapSandbox) -> None:
        """Write a sandbox's record anew, soon (it says itself that it has changed)."""
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
        for snapshot_id in list(self._snapshots):
            await self.delete_snapshot(snapshot_id)
        self._roots.forget()
        self._records.tidy()

    async def snapshot(self, sandbox: BubblewrapSandbox) -> Snapshot:
        """See ``BubblewrapSandbox.snapshot``, which calls this."""
        machine = await self._prepare()
        snapshot_id = f"snap-{secrets.token_hex(6)}"
        path = self._records.folder / snapshot_name(machine.owner, snapshot_id)
        most = sandbox.spec.limits.disk_bytes * 5 // 4 + _ARCHIVE_ROOM
        size = await sandbox.pack(sandbox.spec.workdir, path, max_bytes=most)
        self._snapshots[snapshot_id] = path
        return Snapshot(snapshot_id, size)

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Forget a snapshot; absent is fine."""
        path = self._snapshots.pop(snapshot_id, None)
        if path is not None:
            path.unlink(missing_ok=True)

    def _archive_of(self, snapshot_id: str) -> Path:
        try:
            return self._snapshots[snapshot_id]
        except KeyError:
            raise InvalidSpec(f"snapshot={snapshot_id!r}: this provider has no such snapshot") from None

    def live(self) -> list[str]:
        """Ids of the sandboxes that exist now."""
        return sorted(self._sandboxes)

    # -- steps of create --------------------------------------------------------------------------------
    def _launch(self, machine: _Machine, spec: SandboxSpec, rooted: Rooted | None) -> BubblewrapSandbox:
        """Group, record and process; no await in between, so that a cancellation cannot fall in."""
        interpreter = machine.interpreter if rooted is None else rooted.interpreter
        image = None if rooted is None else rooted.image
        sources = [*(mount.source for mount in spec.mounts), *(s for s, _ in interpreter.mounts)]
        sources += [] if spec.root is None else [spec.root]
        overlay = None
        if spec.root is not None and image is not None and image.overlay and image.workdir is not None:
            user = image.workdir.stat().st_uid
            overlay = Overlay(spec.root, spec.workdir, user, spec.limits.disk_bytes)
        shelf = make_shelf(sources, drops_root=machine.launcher.drops_root, overlay=overlay)
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
            arguments = sandbox_arguments(spec, interpreter, machine.filter, shelf, image)
            process = machine.launcher.start(
                arguments, shelf.outer, () if rooted is None else interpreter.command
            )
        except BaseException as error:
            for folder in groups:
                folder.rmdir()
            self._records.drop(sandbox_id)
            if isinstance(error, OSError):
                raise SandboxStartFailed(f"{error.filename or 'start'}: {error.strerror or error}") from error
            raise
        env = base_env(spec, interpreter)
        sandbox = BubblewrapSandbox(record, spec, env, process, groups, self)
        self._sandboxes[sandbox_id] = sandbox
        return sandbox

    async def _connect(self, machine: _Machine, sandbox: BubblewrapSandbox) -> None:
        """Process 1 goes into its group, gets its configuration, and answers that it is ready."""
        spec, process = sandbox.spec, sandbox.process
        pid = await process.learn_inner(START_S)
        try:
            if spec.limits.cpus is None:
                machine.cgroups.enter(sandbox.groups, pid)
            else:  # this waits in the kernel, and the loop must not
                await asyncio.to_thread(machine.cgroups.enter, sandbox.groups, pid)
        except ProcessLookupError:
            raise SandboxStartFailed(await process.last_words()) from None
        started = start_time(pid) or 0
        expires = boot_time() + spec.ttl_s
        sandbox.record = replace(sandbox.record, pid=pid, started=started, expires=expires)
        self._records.put(sandbox.record)
        servers = servers_of(spec)
        door, *listeners = await ready(process, self._configuration(machine, spec), len(servers))
        try:
            for server, listener in zip(servers.values(), listeners, strict=True):
                await server.start(listener)
            channel = await Channel.open(process.control, sandbox.channel_ended)
        except BaseException:
            # Not the sandbox's yet, so its end would not reach them.
            for server in servers.values():
                server.stop()
            for passed in (door, *listeners):
                passed.close()
            raise
        port = wire.RELAY_PORT if wire.RELAY_PORT in servers else None
        sandbox.attach(channel, door, tuple(servers.values()), port)

    def _configuration(self, machine: _Machine, spec: SandboxSpec) -> bytes:
        cgroups = machine.cgroups
        limits = rlimits(
            spec.limits,
            memory=not cgroups.enforces("memory"),
            pids=not cgroups.enforces("pids") and nproc_is_per_sandbox(machine.launcher.drops_root),
        )
        pairs = [b"%d" % number for item in limits.items() for number in item]
        ports = b" ".join(b"%d" % port for port in servers_of(spec))
        return wire.frame(wire.CONFIG, 0, wire.pack(os.fsencode(spec.workdir), ports, *pairs))

    async def _clean_up(self, sandbox: BubblewrapSandbox) -> None:
        """Terminate in a task of its own: a second cancellation must not stop the first one's cleaning."""
        task = asyncio.ensure_future(sandbox.terminate())
        self._cleanups.add(task)
        task.add_done_callback(self._cleanups.discard)
        await asyncio.shield(task)

    def ended(self, sandbox: BubblewrapSandbox) -> None:
        """A sandbox of this provider is gone (it says so itself)."""
        self._sandboxes.pop(sandbox.id, None)
        self._records.drop(sandbox.id)


def _abandon(sandboxes: dict[str, BubblewrapSandbox]) -> None:
    for sandbox in list(sandboxes.values()):
        with contextlib.suppress(OSError, SandboxGone):
            sandbox.abandon()
