"""Makes bubblewrap sandboxes, and knows every one it made."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
import weakref
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from .accepting import Room
from .errors import InvalidSpec, SandboxError, SandboxGone, SandboxStartFailed
from .groups import sweep
from .owners import Records, default_folder, snapshot_name
from .probe import Capabilities
from .protocol import Feature, SandboxSpec, Snapshot
from .roots import Roots
from .sandbox import OTHER_LOOP, BubblewrapSandbox
from .specs import check_spec
from .starting import Machine, connect, launch, look_at_machine
from .watch import Watch

__all__ = ["BubblewrapProvider"]

_ARCHIVE_ROOM = 16 << 20


class BubblewrapProvider:
    """Sandboxes on this machine, each with namespaces, a seccomp filter, limits and an exec agent of its own.

    Args:
        runtime_dir: private folder for the records of live sandboxes; by default one of this user, in memory
            where that is possible (``owners.default_folder``).
        interpreter: which Python runs the agent inside: ``auto``, ``system`` or ``base``.
        use_cgroups: False holds limits by rlimits alone.
        concurrency: how many sandboxes may be starting at the same time.
        reaper: False starts no reaper, the small process of its own (one per user and ``runtime_dir``) that
            removes what this process leaves should it be killed. Without it that is removed by the next
            provider that starts, or by ``dressage-sandbox pool reap``.

    Sandboxes end with the process that made them, however that ends, and with their event loop: in the next
    one the provider makes new ones.
    """

    def __init__(
        self,
        *,
        runtime_dir: Path | None = None,
        interpreter: str = "auto",
        use_cgroups: bool = True,
        concurrency: int | None = None,
        reaper: bool = True,
    ) -> None:
        if interpreter not in ("auto", "system", "base"):
            raise InvalidSpec(f"interpreter={interpreter!r}: one of auto, system, base")
        self._records = Records(runtime_dir or default_folder())
        self._watch = Watch(self._records.folder, wanted=reaper)
        self._choice = interpreter
        self._use_cgroups = use_cgroups
        self._most_starting = concurrency or 2 * (os.cpu_count() or 1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._machine: Machine | None = None
        self._sandboxes: dict[str, BubblewrapSandbox] = {}
        self._starting = asyncio.Semaphore(self._most_starting)
        self._probing = asyncio.Lock()
        self._room = Room()
        self._snapshots: dict[str, Path] = {}
        self._roots = Roots(self._records.folder)
        self._cleanups: set[asyncio.Task[None]] = set()
        self._closed = False
        # A process that forgets to close() kills its sandboxes at exit all the same.
        weakref.finalize(self, _abandon, self._sandboxes, self._watch)

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

    def settle(self) -> None:
        """Serve this event loop from here on, where the one before has ended.

        Raises:
            SandboxError: that one has not.
        """
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None:
            if not self._loop.is_closed():
                raise SandboxError(OTHER_LOOP)
            self._cleanups.clear()
            self._room = Room()
            self._starting, self._probing = asyncio.Semaphore(self._most_starting), asyncio.Lock()
            for sandbox in self._sandboxes.values():  # nobody can use it any more
                self._behind(sandbox.terminate())
        self._loop = loop

    async def _prepare(self) -> Machine:
        self.settle()
        async with self._probing:
            if self._machine is None:
                self._records.prepare()
                # Before the first sandbox is made, so that there is never one unwatched.
                looks = (asyncio.to_thread(self._look), asyncio.to_thread(self._watch.begin))
                machine, _ = await asyncio.gather(*looks)
                self._machine = machine
            return self._machine

    def _look(self) -> Machine:
        machine = look_at_machine(self._choice, use_cgroups=self._use_cgroups)
        self._records.reap()
        sweep(machine.cgroups.parents.values())
        return machine

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
            sandbox = launch(machine, self._records, spec, rooted, self)
            self._sandboxes[sandbox.id] = sandbox
            if self._watch.missing:  # it was killed
                self._behind(asyncio.to_thread(self._watch.start))
            try:
                await connect(machine, self._records, sandbox, self._room)
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
        self.settle()
        self._closed = True
        ends = [sandbox.terminate() for sandbox in list(self._sandboxes.values())]
        results = await asyncio.gather(*ends, *self._cleanups, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        for snapshot_id in list(self._snapshots):
            await self.delete_snapshot(snapshot_id)
        self._roots.forget()
        self._watch.end()
        self._records.tidy()

    async def snapshot(self, sandbox: BubblewrapSandbox) -> Snapshot:
        """See ``BubblewrapSandbox.snapshot``, which calls this."""
        machine = await self._prepare()
        snapshot_id = f"snap-{secrets.token_hex(6)}"
        path = self._records.folder / snapshot_name(machine.owner, snapshot_id)
        most = sandbox.spec.limits.disk_bytes * 5 // 4 + _ARCHIVE_ROOM
        size = await sandbox.pack(sandbox.spec.workdir, path, max_bytes=most)
        if self._closed:
            path.unlink()
            raise SandboxGone("the provider was closed meanwhile")
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

    async def _clean_up(self, sandbox: BubblewrapSandbox) -> None:
        """Terminate in a task of its own: a second cancellation must not stop the first one's cleaning."""
        await asyncio.shield(self._behind(sandbox.terminate()))

    def _behind(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Work that ``close`` waits for."""
        task = asyncio.ensure_future(work)
        self._cleanups.add(task)
        task.add_done_callback(self._cleanups.discard)
        return task

    def ended(self, sandbox: BubblewrapSandbox) -> None:
        """A sandbox of this provider is gone (it says so itself)."""
        self._sandboxes.pop(sandbox.id, None)
        self._records.drop(sandbox.record)


def _abandon(sandboxes: dict[str, BubblewrapSandbox], watch: Watch) -> None:
    watch.end()
    for sandbox in list(sandboxes.values()):
        with contextlib.suppress(OSError, SandboxGone):
            sandbox.abandon()
