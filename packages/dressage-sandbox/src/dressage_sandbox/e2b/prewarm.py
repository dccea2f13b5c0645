"""Sandboxes that are made ahead of time, and how often one was there in time."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import replace
from typing import Any

from ..errors import InvalidSpec, ProviderUnavailable, SandboxError
from ..protocol import Feature, SandboxSpec
from .provider import E2BProvider
from .sandbox import E2BSandbox

__all__ = ["PrewarmedE2B"]

_RETRY_S = 5.0
_log = logging.getLogger("dressage_sandbox.e2b")


class PrewarmedE2B:
    """Keeps ``size`` fresh sandboxes of one spec ready; each is handed out once.

    A spec that differs in more than ``owner`` and ``ttl_s``, and one that finds none ready, is made on the
    spot. A sandbox that nobody claims within ``idle_s`` ends and is replaced.
    """

    def __init__(
        self, provider: E2BProvider, spec: SandboxSpec, size: int, *, idle_s: float = 1800.0
    ) -> None:
        if size < 1 or not idle_s > 0:
            raise InvalidSpec(f"size={size}, idle_s={idle_s}: give 1 or more, and more than 0")
        self._provider = provider
        self._spec = replace(spec, owner="prewarmed", ttl_s=idle_s)
        self._size = size
        self._ready: deque[E2BSandbox] = deque()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Event()
        self._closed = False
        self._refused: SandboxError | None = None
        self.hits = 0
        self.misses = 0

    @property
    def features(self) -> frozenset[Feature]:
        """The provider's."""
        return self._provider.features

    @property
    def ready(self) -> int:
        """How many wait to be claimed."""
        return sum(sandbox.alive for sandbox in self._ready)

    @property
    def hit_rate(self) -> float:
        """The share of creates that found one ready; 0 before the first."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else 0.0

    async def fill(self) -> None:
        """Wait until all are ready."""
        while self.ready < self._size:
            if self._closed:
                raise SandboxError("the prewarmed provider is closed")
            self._changed.clear()
            self._refill()
            await self._changed.wait()
            if self._refused is not None:
                raise self._refused

    async def create(self, spec: SandboxSpec) -> E2BSandbox:
        """A ready one of this spec, or a new one."""
        if self._closed:
            raise SandboxError("the prewarmed provider is closed")
        same = replace(spec, owner=self._spec.owner, ttl_s=self._spec.ttl_s, env=dict(spec.env))
        while same == replace(self._spec, env=dict(self._spec.env)) and self._ready:
            sandbox = self._ready.popleft()
            if not sandbox.alive:
                continue
            try:
                await sandbox.renew(spec.ttl_s)
            except SandboxError as error:
                _log.warning("a prewarmed sandbox was lost: %s", error)
                self._behind(sandbox.terminate())
                continue
            except BaseException:
                self._behind(sandbox.terminate())
                raise
            sandbox.owner = spec.owner
            self.hits += 1
            self._refill()
            return sandbox
        self.misses += 1
        self._refill()
        return await self._provider.create(spec)

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """The provider's."""
        await self._provider.delete_snapshot(snapshot_id)

    async def close(self) -> None:
        """Stop refilling and close the provider, with every sandbox of it."""
        self._closed = True
        self._changed.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._ready.clear()
        await self._provider.close()

    def _behind(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _refill(self) -> None:
        if self._closed or self._refused is not None:
            return
        self._ready = deque(sandbox for sandbox in self._ready if sandbox.alive)
        for _ in range(self._size - len(self._ready) - len(self._tasks)):
            self._behind(self._make())

    async def _make(self) -> None:
        try:
            sandbox = await self._provider.create(self._spec)
        except (InvalidSpec, ProviderUnavailable) as error:
            self._refused = error  # no other answer is to be hoped for
        except SandboxError as error:
            _log.warning("no sandbox could be made ahead of time; tried again: %s", error)
            await asyncio.sleep(_RETRY_S)
        else:
            self._ready.append(sandbox)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a prewarmed sandbox was not made or ended: %s", error)
        elif self._refused is None:
            self._refill()
