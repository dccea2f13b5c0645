"""Places sandboxes on the nodes of a cluster by capacity, and survives the loss of nodes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import Full, InvalidSpec, ProviderUnavailable, SandboxError, SandboxGone, SandboxStartFailed
from ..protocol import Feature, SandboxSpec
from ..specs import check_features
from .config import RayConfig
from .sandbox import RaySandbox

if TYPE_CHECKING:
    from ._cluster import Node

__all__ = ["RayProvider"]

_LOOK_S = 2.0
_START_S = 120.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_log = logging.getLogger("dressage_sandbox.ray")


class RayProvider:
    """Sandboxes on every node of a Ray cluster, each node with a provider of its own.

    A node's actor holds its sandboxes; calls and their data go from this process to that actor, and through
    nothing central. A node that is lost ends its leases as ``SandboxGone`` (an infrastructure failure); what
    is asked for afterwards, a create that was under way there too, is made on the nodes that are left.
    Actors end with this process, and their sandboxes with them.
    """

    def __init__(self, config: RayConfig | None = None) -> None:
        self._config = config or RayConfig()
        self._nodes: dict[str, asyncio.Task[Node]] = {}
        self._room: dict[str, int] = {}
        self._looked = float("-inf")
        self._looking = asyncio.Lock()
        self._lost: set[str] = set()
        self._used: dict[str, int] = {}
        self._sandboxes: dict[str, RaySandbox] = {}
        self._freed = asyncio.Condition()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def features(self) -> frozenset[Feature]:
        """What it can do."""
        return self._config.features

    def live(self) -> list[str]:
        """Ids of the sandboxes that exist now."""
        return sorted(self._sandboxes)

    def placed(self) -> dict[str, int]:
        """How many sandboxes each node holds, by its id."""
        return {node: used for node, used in self._used.items() if used}

    async def warm(self) -> None:
        """Start every node, and wait until what their providers keep ready is there.

        Raises:
            SandboxError: a node could not be used; the others are warm.
        """
        self._check(SandboxSpec())
        self._looked = float("-inf")
        await self._look()
        results = await asyncio.gather(*(self._warm(node) for node in self._room), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _warm(self, node_id: str) -> None:
        await (await self._node(node_id)).ask("fill", patience_s=_START_S)

    async def create(self, spec: SandboxSpec) -> RaySandbox:
        """A ready sandbox, on the node that has most room for it in proportion.

        Raises:
            Full: no node has room, or none within ``queue_s``.
            InvalidSpec, Unsupported: a field, named.
            SandboxStartFailed: no node could make it.
            ProviderUnavailable: Ray is missing, or this process is in no cluster.
        """
        self._check(spec)
        deadline = time.monotonic() + self._config.queue_s
        failed: set[str] = set()
        while True:
            node_id = await self._take_place(spec, failed, deadline)
            try:
                return await self._create_on(node_id, spec)
            except (SandboxGone, SandboxStartFailed) as error:
                failed.add(node_id)
                if spec.snapshot is not None or not await self._others(failed):
                    raise SandboxStartFailed(f"no node could make a sandbox: {error}") from error
                _log.warning("a sandbox is made elsewhere: %s", error)

    async def recreate(self, lost: RaySandbox) -> RaySandbox:
        """A fresh sandbox of the same spec, for one whose node was lost; nothing of its files is left."""
        return await self.create(replace(lost.spec, snapshot=None))

    def _check(self, spec: SandboxSpec) -> None:
        if self._closed:
            raise SandboxStartFailed("the provider is closed")
        check_features(spec, self.features, "a Ray cluster")
        host = (spec.relay or "").rpartition(":")[0].strip("[]")
        if host in _LOOPBACK and not self._config.loopback_relay:
            raise InvalidSpec(
                f"relay: {spec.relay} is each node's own loopback; give an address that all nodes reach, "
                "or set RayConfig.loopback_relay"
            )
        try:
            from ._cluster import check_connected
        except ImportError as error:
            raise ProviderUnavailable(
                f"Ray is not installed ({error}): pip install 'dressage-sandbox[ray]'"
            ) from error
        check_connected()

    # -- placement --------------------------------------------------------------------------------------
    async def _look(self) -> None:
        """Which nodes there are, from time to time."""
        from ._cluster import alive_nodes

        async with self._looking:
            if time.monotonic() - self._looked < _LOOK_S:
                return
            nodes = await alive_nodes(self._config.resource)
            self._looked = time.monotonic()
        self._room = {n: self._config.room(cpus) for n, cpus in nodes.items() if n not in self._lost}

    async def _others(self, failed: set[str]) -> bool:
        self._looked = float("-inf")
        await self._look()
        return bool(set(self._room) - failed)

    async def _take_place(self, spec: SandboxSpec, failed: set[str], deadline: float) -> str:
        """Reserve room on a node; gives its id."""
        while True:
            await self._look()
            wanted = None if spec.snapshot is None else spec.snapshot.partition("/")[0]
            if wanted is not None and wanted not in self._room:
                raise InvalidSpec(f"snapshot {spec.snapshot} is not there: its node is lost, or never was")
            free = {
                node: (room - self._used.get(node, 0)) / room
                for node, room in self._room.items()
                if node not in failed and wanted in (None, node) and self._used.get(node, 0) < room
            }
            if free:
                node_id = max(free, key=lambda node: (free[node], node))
                self._used[node_id] = self._used.get(node_id, 0) + 1
                return node_id
            left = deadline - time.monotonic()
            if left <= 0:
                raise Full(f"no room on any of {len(self._room)} nodes: {sum(self._used.values())} in use")
            try:
                async with asyncio.timeout(min(left, _LOOK_S)), self._freed:
                    await self._freed.wait()
            except TimeoutError:
                continue

    def _give_back(self, node_id: str) -> None:
        self._used[node_id] = max(0, self._used.get(node_id, 0) - 1)
        self._go_on_behind(self._tell_freed())

    async def _tell_freed(self) -> None:
        async with self._freed:
            self._freed.notify_all()

    async def _create_on(self, node_id: str, spec: SandboxSpec) -> RaySandbox:
        """Its place is reserved; given back unless a sandbox comes of it."""
        making = asyncio.ensure_future(self._make(node_id, spec))
        try:
            sandbox = await asyncio.shield(making)
        except BaseException:
            if making.done() and (making.cancelled() or making.exception() is not None):
                self._give_back(node_id)
            else:
                self._go_on_behind(self._undo(node_id, making))
            raise
        if self._closed:
            await sandbox.terminate()
            raise SandboxStartFailed("the provider was closed meanwhile")
        return sandbox

    async def _make(self, node_id: str, spec: SandboxSpec) -> RaySandbox:
        node = await self._node(node_id)
        inner = spec if spec.snapshot is None else replace(spec, snapshot=spec.snapshot.partition("/")[2])
        sandbox_id, relay_url = await node.ask("create", inner, patience_s=_START_S)
        sandbox = RaySandbox(spec, node, sandbox_id, relay_url, self._ended)
        self._sandboxes[sandbox.id] = sandbox
        return sandbox

    async def _undo(self, node_id: str, making: asyncio.Task[RaySandbox]) -> None:
        await asyncio.wait({making})
        if making.cancelled() or making.exception() is not None:
            self._give_back(node_id)
        else:
            await making.result().terminate()

    # -- nodes ------------------------------------------------------------------------------------------
    async def _node(self, node_id: str) -> Node:
        from ._cluster import start_node

        task = self._nodes.get(node_id)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            config = self._config
            task = asyncio.ensure_future(start_node(node_id, config.make, max(config.call_s, _START_S)))
            self._nodes[node_id] = task
            task.add_done_callback(self._begin_watch)
        return await asyncio.shield(task)

    def _begin_watch(self, started: asyncio.Task[Node]) -> None:
        if not started.cancelled() and started.exception() is None:
            self._go_on_behind(self._watch(started.result()))

    async def _watch(self, node: Node) -> None:
        """Wait for the node's loss, and end its leases then, also those that nobody is asking anything."""
        await node.until_lost()
        if self._closed:
            return
        _log.warning("node %s is lost with its sandboxes", node.id[:12])
        self._lost.add(node.id)
        self._room.pop(node.id, None)
        for sandbox in [s for s in self._sandboxes.values() if s.node is node]:
            sandbox.lost(f"node {node.id[:12]} is lost")

    def _ended(self, sandbox: RaySandbox) -> None:
        if self._sandboxes.pop(sandbox.id, None) is not None:
            self._give_back(sandbox.node.id)

    def _go_on_behind(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done_behind)

    def _done_behind(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a clean-up failed; its sandbox ends with this process: %s", error)

    # -- end --------------------------------------------------------------------------------------------
    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Forget a snapshot; one whose node is lost is gone already."""
        node_id, _, inner = snapshot_id.partition("/")
        task = self._nodes.get(node_id)
        if task is not None and node_id not in self._lost:
            await (await asyncio.shield(task)).ask("delete_snapshot", inner)

    async def close(self) -> None:
        """End every sandbox, and the actors of all nodes."""
        self._closed = True
        for sandbox in list(self._sandboxes.values()):
            self._go_on_behind(sandbox.terminate())
        started = [t for t in self._nodes.values() if t.done() and not t.cancelled() and not t.exception()]
        nodes = [task.result() for task in started]
        results = await asyncio.gather(*(self._close(node) for node in nodes), return_exceptions=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._sandboxes.clear()
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _close(self, node: Node) -> None:
        try:
            if node.id not in self._lost:
                await node.ask("close")
        except SandboxGone:
            return
        except SandboxError as error:
            _log.error("node %s was not closed in order, and is killed: %s", node.id[:12], error)
        finally:
            await node.kill()
