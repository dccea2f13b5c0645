"""Makes sandboxes at E2B, and leaves none there."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
import uuid
from collections.abc import Coroutine
from shlex import quote
from typing import TYPE_CHECKING, Any

from ..arguments import check_features, check_spec
from ..errors import (
    InvalidSpec,
    LimitNotEnforceable,
    ProviderUnavailable,
    SandboxError,
    SandboxGone,
    SandboxStartFailed,
)
from ..protocol import Feature, SandboxSpec
from ..remote import RemoteSandbox, Snapshots
from ..remote.owner import KIND, LABEL, WANTED, Orphan, Tags
from .config import E2BConfig
from .retry import is_transient, wait_s
from .sandbox import E2BSandbox, server_time_s

if TYPE_CHECKING:
    from ._sdk import Cloud, Handle

__all__ = ["E2BProvider", "Orphan"]

_CLEAN_UP_S = 60.0
_log = logging.getLogger("dressage_sandbox.e2b")


class E2BProvider:
    """Virtual machines at E2B.

    A template decides memory, processors and disk of a machine: ``limits.cpus`` is refused, and
    ``memory_bytes``, ``pids`` and ``disk_bytes`` are the template's. Nothing outside can be reached from
    inside, but what ``E2BConfig.whole_host_rules`` lets a spec open.

    Each create carries a name of its own in the sandbox's metadata: one whose answer was lost is found again
    by it, and taken or ended.
    """

    def __init__(self, config: E2BConfig | None = None) -> None:
        self._config = config or E2BConfig()
        self._tags = Tags()
        self._cloud: Cloud | None = None
        self._sandboxes: dict[str, E2BSandbox] = {}
        self._snapshots = Snapshots()
        self._behind: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def features(self) -> frozenset[Feature]:
        """What it can do."""
        opened = {Feature.RELAY, Feature.EGRESS} if self._config.whole_host_rules else set()
        return frozenset({Feature.SERVICES, Feature.EXPOSE, Feature.SNAPSHOTS, *opened})

    def live(self) -> list[str]:
        """Ids of the sandboxes that this provider made and has not ended."""
        return sorted(self._sandboxes)

    @property
    def cleaning(self) -> int:
        """Clean-ups that go on behind: of creates that failed or were cancelled."""
        return len(self._behind)

    def _account(self) -> Cloud:
        if self._cloud is None:
            try:
                from ._sdk import Cloud
            except ImportError as error:
                raise ProviderUnavailable(
                    f"the SDK of E2B is not installed ({error}): pip install 'dressage-sandbox[e2b]'"
                ) from error
            self._cloud = Cloud(self._config)
        return self._cloud

    async def create(self, spec: SandboxSpec) -> E2BSandbox:
        """A ready sandbox.

        A create that fails or is cancelled is cleaned up behind, since its sandbox may exist although nobody
        was told so; ``close`` waits for that.

        Raises:
            InvalidSpec, Unsupported, LimitNotEnforceable: a field, named.
            SandboxStartFailed: E2B made none.
            ProviderUnavailable: the SDK or the key is missing.
        """
        self._check(spec)
        cloud = self._account()
        wanted = str(uuid.uuid4())
        making = asyncio.ensure_future(self._make(cloud, spec, wanted))
        try:
            sandbox = await asyncio.shield(making)
        except BaseException:
            self._go_on_behind(self._undo(cloud, making, wanted))
            raise
        if self._closed:
            await sandbox.terminate()
            raise SandboxStartFailed("the provider was closed meanwhile")
        return sandbox

    def _check(self, spec: SandboxSpec) -> None:
        if self._closed:
            raise SandboxStartFailed("the provider is closed")
        check_spec(spec)
        check_features(spec, self.features, "E2B")
        self._snapshots.check(spec.snapshot)
        if spec.limits.cpus is not None:
            raise LimitNotEnforceable("limits.cpus: a template of E2B decides it; leave it None")
        for address in _hosts(spec):
            _check_public(address)

    async def _make(self, cloud: Cloud, spec: SandboxSpec, wanted: str) -> E2BSandbox:
        handle = await self._handle(cloud, spec, wanted)
        sandbox = E2BSandbox(spec, handle, cloud, tag=wanted, on_end=self._ended, snapshots=self._snapshots)
        self._sandboxes[sandbox.id] = sandbox
        try:
            await self._furnish(handle, spec)
            await sandbox.begin_with_snapshot()
        except BaseException:
            self._go_on_behind(sandbox.terminate())
            raise
        return sandbox

    async def _handle(self, cloud: Cloud, spec: SandboxSpec, wanted: str) -> Handle:
        """Create, again where E2B was busy; first look whether an attempt that failed made one after all."""
        from ._sdk import status_of

        config, failed = self._config, 0
        life = server_time_s(config, spec.ttl_s)
        while True:
            try:
                metadata = self._tags.metadata(wanted, spec.owner)
                return await cloud.make(life, metadata, wanted, _network(spec))
            except Exception as error:
                failed += 1
                status = status_of(error)
                if status is None or status >= 500:
                    found = await cloud.find({WANTED: wanted})
                    if found:
                        return await cloud.connect(found[0][0], life)
                if failed >= config.attempts or not is_transient(status):
                    told = cloud.told(error, "E2B made no sandbox")
                    plain = type(told) in (SandboxError, SandboxGone)
                    raise (SandboxStartFailed(str(told)) if plain else told) from error
            await asyncio.sleep(wait_s(config, failed, random.random()))

    async def _furnish(self, handle: Handle, spec: SandboxSpec) -> None:
        folder, user = quote(spec.workdir), quote(self._config.user)
        made = f"mkdir -p {folder} && chown {user} {folder}"
        await handle.run(made, timeout_s=_CLEAN_UP_S, as_root=True)
        answer = await handle.run(f"[ -w {folder} ] && echo yes", timeout_s=_CLEAN_UP_S)
        if answer.strip() != b"yes":
            raise SandboxStartFailed(f"workdir {spec.workdir}: user {self._config.user} may not write there")

    # -- what must not stay -----------------------------------------------------------------------------
    async def _undo(self, cloud: Cloud, making: asyncio.Task[E2BSandbox], wanted: str) -> None:
        """End what a create made that nobody waits for: the answer may still be on its way."""
        await asyncio.wait({making}, timeout=2 * self._config.request_timeout_s)
        if making.done() and not making.cancelled() and making.exception() is None:
            await making.result().terminate()
            return
        making.cancel()
        for sandbox_id, _ in await cloud.find({WANTED: wanted}):
            await cloud.kill(sandbox_id)

    def _go_on_behind(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._behind.add(task)
        task.add_done_callback(self._done_behind)

    def _done_behind(self, task: asyncio.Task[Any]) -> None:
        self._behind.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a clean-up failed; its sandbox ends by its time-out: %s", error)

    async def orphans(self) -> list[Orphan]:
        """Sandboxes of this account whose owner, a process of this machine, has ended. Peers' are not among
        them, nor those of other machines, of whose owners nothing is known here."""
        found = await self._account().find({KIND: "1"})
        return [Orphan(i, tags.get(LABEL, "")) for i, tags in found if self._tags.owner_is_dead(tags)]

    async def reap(self) -> list[str]:
        """End all orphans; returns their ids."""
        orphans = await self.orphans()
        await asyncio.gather(*(self._account().kill(orphan.id) for orphan in orphans))
        return [orphan.id for orphan in orphans]

    async def adopt(self, sandbox_id: str, spec: SandboxSpec) -> E2BSandbox:
        """Take an orphan over, with its files and what runs in it; ``spec`` says its limits and time to live.

        Raises:
            InvalidSpec: it is no orphan: its owner lives, is not known, or it is not there.
        """
        self._check(spec)
        if sandbox_id not in [orphan.id for orphan in await self.orphans()]:
            raise InvalidSpec(f"sandbox {sandbox_id} is no orphan of this machine")
        cloud = self._account()
        handle = await cloud.connect(sandbox_id, server_time_s(self._config, spec.ttl_s))
        sandbox = E2BSandbox(spec, handle, cloud, tag="", on_end=self._ended, snapshots=self._snapshots)
        self._sandboxes[sandbox_id] = sandbox
        return sandbox

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Forget a snapshot; absent is fine."""
        self._snapshots.delete(snapshot_id)

    async def close(self) -> None:
        """End every sandbox that this provider made, and wait for clean-ups that go on behind."""
        self._closed = True
        ends = [sandbox.terminate() for sandbox in list(self._sandboxes.values())]
        results = await asyncio.gather(*ends, return_exceptions=True)
        if self._behind:
            await asyncio.wait(set(self._behind), timeout=_CLEAN_UP_S)
        await self._snapshots.close()
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _ended(self, sandbox: RemoteSandbox) -> None:
        self._sandboxes.pop(sandbox.id, None)


def _hosts(spec: SandboxSpec) -> list[str]:
    addresses = ([] if spec.relay is None else [spec.relay]) + list(spec.egress)
    return [address.rpartition(":")[0].strip("[]") for address in addresses]


def _check_public(host: str) -> None:
    """Raise where an address means this machine or this network, and something else over there."""
    try:
        private = not ipaddress.ip_address(host).is_global
    except ValueError:
        private = host == "localhost" or host.endswith((".localhost", ".local", ".internal"))
    if private:
        raise InvalidSpec(f"relay/egress: {host} is not reached from E2B; give a public name or address")


def _network(spec: SandboxSpec) -> dict[str, Any] | None:
    hosts = _hosts(spec)
    return {"allow_out": sorted(set(hosts)), "deny_out": ["0.0.0.0/0"]} if hosts else None
