"""Makes sandboxes at E2B, and leaves none there."""

from __future__ import annotations

import asyncio
import ipaddress
import random
import uuid
from shlex import quote
from typing import TYPE_CHECKING, Any

from ..errors import (
    InvalidSpec,
    LimitNotEnforceable,
    ProviderUnavailable,
    SandboxError,
    SandboxGone,
    SandboxStartFailed,
)
from ..protocol import Feature, SandboxSpec
from ..remote import RemoteProvider
from ..remote.owner import WANTED, Orphan
from .config import E2BConfig
from .retry import is_transient, wait_s
from .sandbox import E2BSandbox, server_time_s

if TYPE_CHECKING:
    from ._sdk import Cloud, Handle

__all__ = ["E2BProvider", "Orphan"]

_FURNISH_S = 60.0


class E2BProvider(RemoteProvider[E2BSandbox]):
    """Virtual machines at E2B.

    A template decides memory, processors and disk of a machine: ``limits.cpus`` is refused, and
    ``memory_bytes``, ``pids`` and ``disk_bytes`` are the template's. Nothing outside can be reached from
    inside, but what ``E2BConfig.whole_host_rules`` lets a spec open.

    Each create carries a name of its own in the sandbox's metadata: one whose answer was lost is found again
    by it, and taken or ended.
    """

    def __init__(self, config: E2BConfig | None = None) -> None:
        self._config = config or E2BConfig()
        super().__init__("E2B", self._config.request_timeout_s)
        self._cloud: Cloud | None = None

    @property
    def features(self) -> frozenset[Feature]:
        """What it can do."""
        opened = {Feature.RELAY, Feature.EGRESS} if self._config.whole_host_rules else set()
        return frozenset({Feature.SERVICES, Feature.EXPOSE, Feature.SNAPSHOTS, *opened})

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
        return await self._made(self._make(cloud, spec, wanted), lambda: self._end_wanted(wanted))

    def _check(self, spec: SandboxSpec) -> None:
        super()._check(spec)
        if spec.limits.cpus is not None:
            raise LimitNotEnforceable("limits.cpus: a template of E2B decides it; leave it None")
        for address in _hosts(spec):
            _check_public(address)

    async def _make(self, cloud: Cloud, spec: SandboxSpec, wanted: str) -> E2BSandbox:
        handle = await self._handle(cloud, spec, wanted)
        sandbox = E2BSandbox(spec, handle, cloud, tag=wanted, on_end=self._ended, snapshots=self._snapshots)
        return await self._furnished(sandbox, self._furnish(handle, spec))

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
        await handle.run(made, timeout_s=_FURNISH_S, as_root=True)
        answer = await handle.run(f"[ -w {folder} ] && echo yes", timeout_s=_FURNISH_S)
        if answer.strip() != b"yes":
            raise SandboxStartFailed(f"workdir {spec.workdir}: user {self._config.user} may not write there")

    # -- what must not stay -----------------------------------------------------------------------------
    async def _end_wanted(self, wanted: str) -> None:
        for sandbox_id, _ in await self._find({WANTED: wanted}):
            await self._remove(sandbox_id)

    async def _find(self, tags: dict[str, str]) -> list[tuple[str, dict[str, str]]]:
        return await self._account().find(tags)

    async def _remove(self, sandbox_id: str) -> None:
        await self._account().kill(sandbox_id)

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
