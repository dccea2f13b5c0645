"""Makes containers, and leaves none."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from ..arguments import check_features, check_spec
from ..errors import ProviderUnavailable, SandboxStartFailed
from ..protocol import Feature, SandboxSpec
from ..remote import RemoteSandbox, Snapshots
from ..remote.owner import KIND, LABEL, Orphan, Tags
from .config import ContainerConfig, find_socket
from .shape import container_body

if TYPE_CHECKING:
    from ._engine import Engine

__all__ = ["ContainerProvider"]

_CLEAN_UP_S = 60.0
_log = logging.getLogger("dressage_sandbox.container")


class ContainerProvider:
    """Containers of Docker or Podman.

    Each has no network (or the one network that the configuration names), no capabilities, no new
    privileges, a read-only root, private tmpfs for the work folder and /tmp, and limits of memory, processes
    and processors by the engine. It is as strong as the engine's isolation is: the kernel is shared.

    Containers of a process that was killed are removed by the next provider on this machine, or by ``reap``.
    """

    def __init__(self, config: ContainerConfig | None = None) -> None:
        self._config = config or ContainerConfig()
        self._tags = Tags()
        self._engine: Engine | None = None
        self._swept: asyncio.Task[list[str]] | None = None
        self._sandboxes: dict[str, RemoteSandbox] = {}
        self._snapshots = Snapshots()
        self._behind: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def features(self) -> frozenset[Feature]:
        """What it can do."""
        relayed = {Feature.RELAY} if self._config.network is not None else set()
        return frozenset({Feature.SERVICES, Feature.MOUNTS, Feature.SNAPSHOTS, *relayed})

    def live(self) -> list[str]:
        """Ids of the sandboxes that exist now."""
        return sorted(self._sandboxes)

    @property
    def cleaning(self) -> int:
        """Clean-ups that go on behind."""
        return len(self._behind)

    def _connected(self) -> Engine:
        if self._engine is None:
            socket = self._config.socket or find_socket()
            if socket is None:
                raise ProviderUnavailable(
                    "no socket of Docker or Podman was found: start one, or give ContainerConfig.socket"
                )
            try:
                from ._engine import Engine
            except ImportError as error:
                raise ProviderUnavailable(
                    f"httpx is not installed ({error}): pip install 'dressage-sandbox[container]'"
                ) from error
            self._engine = Engine(socket, self._config.request_timeout_s)
        return self._engine

    async def create(self, spec: SandboxSpec) -> RemoteSandbox:
        """A ready sandbox. One whose create was cancelled is removed behind; ``close`` waits for that.

        Raises:
            InvalidSpec, Unsupported: a field, named.
            SandboxStartFailed: with what the engine said.
            ProviderUnavailable: no engine, or no such image.
        """
        self._check(spec)
        engine = self._connected()
        if self._swept is None:
            self._swept = asyncio.ensure_future(self.reap())
        await asyncio.shield(self._swept)
        name = f"dressage-{uuid.uuid4().hex}"
        making = asyncio.ensure_future(self._make(engine, name, spec))
        try:
            sandbox = await asyncio.shield(making)
        except BaseException:
            self._go_on_behind(self._undo(engine, making, name))
            raise
        if self._closed:
            await sandbox.terminate()
            raise SandboxStartFailed("the provider was closed meanwhile")
        return sandbox

    def _check(self, spec: SandboxSpec) -> None:
        if self._closed:
            raise SandboxStartFailed("the provider is closed")
        check_spec(spec)
        check_features(spec, self.features, "a container")
        self._snapshots.check(spec.snapshot)

    async def _make(self, engine: Engine, name: str, spec: SandboxSpec) -> RemoteSandbox:
        from ._engine import Container

        labels = self._tags.metadata(name, spec.owner)
        await engine.create(name, container_body(self._config, spec, labels))
        container = Container(engine, name, f"{self._config.uid}:{self._config.uid}")
        relay = None if spec.relay is None else f"http://{spec.relay}"
        sandbox = RemoteSandbox(
            name, spec, container, on_end=self._ended, relay_url=relay, snapshots=self._snapshots
        )
        self._sandboxes[name] = sandbox
        try:
            await sandbox.begin_with_snapshot()
        except BaseException:
            self._go_on_behind(sandbox.terminate())
            raise
        return sandbox

    async def _undo(self, engine: Engine, making: asyncio.Task[RemoteSandbox], name: str) -> None:
        """Remove what a create made that nobody waits for, once the engine has answered it."""
        await asyncio.wait({making}, timeout=2 * self._config.request_timeout_s)
        if making.done() and not making.cancelled() and making.exception() is None:
            await making.result().terminate()
            return
        making.cancel()
        try:
            await engine.remove(name)
        except ProviderUnavailable:
            return  # no engine, and so no container

    def _go_on_behind(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._behind.add(task)
        task.add_done_callback(self._done_behind)

    def _done_behind(self, task: asyncio.Task[Any]) -> None:
        self._behind.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a clean-up failed; reap() removes what it left: %s", error)

    async def orphans(self) -> list[Orphan]:
        """Containers whose owner, a process of this machine, has ended; peers' are not among them."""
        found = await self._connected().find(f"{KIND}=1")
        return [Orphan(name, tags.get(LABEL, "")) for name, tags in found if self._tags.owner_is_dead(tags)]

    async def reap(self) -> list[str]:
        """Remove all orphans; returns their ids."""
        orphans = await self.orphans()
        await asyncio.gather(*(self._connected().remove(orphan.id) for orphan in orphans))
        return [orphan.id for orphan in orphans]

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Forget a snapshot; absent is fine."""
        self._snapshots.delete(snapshot_id)

    async def close(self) -> None:
        """Remove every container that this provider made, and wait for clean-ups that go on behind."""
        self._closed = True
        ends = [sandbox.terminate() for sandbox in list(self._sandboxes.values())]
        results = await asyncio.gather(*ends, return_exceptions=True)
        if self._behind:
            await asyncio.wait(set(self._behind), timeout=_CLEAN_UP_S)
        await self._snapshots.close()
        if self._engine is not None:
            await self._engine.aclose()
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _ended(self, sandbox: RemoteSandbox) -> None:
        self._sandboxes.pop(sandbox.id, None)
