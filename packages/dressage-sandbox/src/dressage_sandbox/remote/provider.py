"""What the providers of remote sandboxes share: creates that leave nothing, orphans, and the end of all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from ..errors import SandboxStartFailed
from ..protocol import Feature, SandboxSpec
from ..specs import check_features, check_spec
from .owner import KIND, LABEL, Orphan, Tags
from .sandbox import RemoteSandbox
from .snapshots import Snapshots

__all__ = ["RemoteProvider"]

S = TypeVar("S", bound=RemoteSandbox)

_CLEAN_UP_S = 60.0
_log = logging.getLogger("dressage_sandbox.remote")


class RemoteProvider(ABC, Generic[S]):
    """Knows the sandboxes that it made, and cleans up behind creates that failed or were cancelled.

    Args:
        name: in messages.
        answer_s: how long an answer may take at the most; a create that nobody waits for is given twice that.
    """

    def __init__(self, name: str, answer_s: float) -> None:
        self._name = name
        self._answer_s = answer_s
        self._tags = Tags()
        self._sandboxes: dict[str, S] = {}
        self._snapshots = Snapshots()
        self._creates = 0
        self._changed = asyncio.Event()
        """Set when a create or a clean-up has ended."""
        self._behind: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    @abstractmethod
    def features(self) -> frozenset[Feature]:
        """What it can do."""

    @abstractmethod
    async def _find(self, tags: dict[str, str]) -> list[tuple[str, dict[str, str]]]:
        """Id and tags of everything over there that carries these."""

    @abstractmethod
    async def _remove(self, sandbox_id: str) -> None:
        """End what has this id; absent is fine."""

    async def _disconnect(self) -> None:
        """Let go of connections: nothing is asked for any more."""

    def live(self) -> list[str]:
        """Ids of the sandboxes that this provider made and has not ended."""
        return sorted(self._sandboxes)

    @property
    def cleaning(self) -> int:
        """Clean-ups that go on behind: of creates that failed or were cancelled."""
        return len(self._behind)

    def _check(self, spec: SandboxSpec) -> None:
        if self._closed:
            raise SandboxStartFailed("the provider is closed")
        check_spec(spec)
        check_features(spec, self.features, self._name)
        self._snapshots.check(spec.snapshot)

    async def _made(self, work: Coroutine[Any, Any, S], undo: Callable[[], Coroutine[Any, Any, None]]) -> S:
        """The sandbox that ``work`` makes. ``undo`` removes what a ``work`` that failed may have made."""
        making = asyncio.ensure_future(self._unless_closed(work))
        self._creates += 1
        try:
            return await asyncio.shield(making)
        except BaseException:
            self._go_on_behind(self._undo(making, undo))
            raise
        finally:
            self._creates -= 1
            self._changed.set()

    async def _unless_closed(self, work: Coroutine[Any, Any, S]) -> S:
        sandbox = await work
        if self._closed:
            await sandbox.terminate()
            raise SandboxStartFailed("the provider was closed meanwhile")
        return sandbox

    async def _furnished(self, sandbox: S, furnish: Coroutine[Any, Any, None] | None = None) -> S:
        """Take a sandbox that is there into the books, and make it what its spec says."""
        self._sandboxes[sandbox.id] = sandbox
        try:
            if furnish is not None:
                await furnish
            await sandbox.begin_with_snapshot()
        except BaseException:
            self._go_on_behind(sandbox.terminate())
            raise
        return sandbox

    async def _undo(self, making: asyncio.Task[S], undo: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """End what a create made that nobody waits for: the answer may still be on its way."""
        await asyncio.wait({making}, timeout=2 * self._answer_s)
        if making.done() and not making.cancelled() and making.exception() is None:
            await making.result().terminate()
            return
        making.cancel()
        await undo()

    def _go_on_behind(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._behind.add(task)
        task.add_done_callback(self._done_behind)

    def _done_behind(self, task: asyncio.Task[Any]) -> None:
        self._behind.discard(task)
        self._changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a clean-up of %s failed; reap() removes what it left: %s", self._name, error)

    async def orphans(self) -> list[Orphan]:
        """Sandboxes whose owner, a process of this machine, has ended. Peers' are not among them, nor those
        of other machines, of whose owners nothing is known here."""
        found = await self._find({KIND: "1"})
        return [Orphan(i, tags.get(LABEL, "")) for i, tags in found if self._tags.owner_is_dead(tags)]

    async def reap(self) -> list[str]:
        """End all orphans; returns their ids."""
        orphans = await self.orphans()
        await asyncio.gather(*(self._remove(orphan.id) for orphan in orphans))
        return [orphan.id for orphan in orphans]

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Forget a snapshot; absent is fine."""
        self._snapshots.delete(snapshot_id)

    async def close(self) -> None:
        """End every sandbox that this provider made, and wait for creates and clean-ups under way."""
        self._closed = True
        ends = [sandbox.terminate() for sandbox in list(self._sandboxes.values())]
        results = await asyncio.gather(*ends, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLEAN_UP_S):
                while self._creates or self._behind:  # a create that fails has its clean-up go on behind
                    self._changed.clear()
                    await self._changed.wait()
        await self._snapshots.close()
        await self._disconnect()
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _ended(self, sandbox: RemoteSandbox) -> None:
        self._sandboxes.pop(sandbox.id, None)
