"""Sandboxes made ahead of time, so that a rollout does not wait for its own."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from dataclasses import replace

from .admission import Admission
from .errors import InvalidSpec, LimitNotEnforceable, ProviderUnavailable, SandboxError, Unsupported
from .protocol import Feature, SandboxSpec
from .provider import BubblewrapProvider
from .sandbox import BubblewrapSandbox

__all__ = ["PooledProvider"]

_RETRY_S = 1.0
_FINAL = (InvalidSpec, LimitNotEnforceable, ProviderUnavailable, Unsupported)
_log = logging.getLogger("dressage_sandbox.pool")


class PooledProvider:
    """Keeps ``size`` fresh sandboxes of one spec ready; each is handed out once and never used again.

    A spec that differs in more than ``owner`` and ``ttl_s`` is made on the spot, as is one that finds the
    pool empty. A sandbox that dies while it waits is replaced at once.

    Args:
        provider: makes the sandboxes; closed together with the pool.
        spec: what every sandbox of the pool is.
        size: how many are kept ready.
        refillers: how many are made at the same time in the background.
        most: how many may be handed out at once, of any spec; None for no bound.
        most_waiting: how many callers may wait for one to come back.
        wait_s: how long a caller waits if it does not say so; who waits is served by deadline.
    """

    def __init__(
        self,
        provider: BubblewrapProvider,
        spec: SandboxSpec,
        size: int,
        *,
        refillers: int = 2,
        most: int | None = None,
        most_waiting: int = 1024,
        wait_s: float = 60.0,
    ) -> None:
        if size < 1 or refillers < 1:
            raise InvalidSpec(f"size={size}, refillers={refillers}: must be at least 1")
        self._provider = provider
        self._key = _key(spec)
        self._spec = replace(spec, owner="pool", ttl_s=math.inf)
        self._size = size
        self._refillers = refillers
        self._ready: deque[BubblewrapSandbox] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._filled = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._admission = Admission(most, most_waiting)
        self._wait_s = wait_s
        self._closed = False
        self._refused: Exception | None = None
        """Why no sandbox of the spec can be made; then none is tried ahead of time, but by ``fill``."""
        self.hits = 0
        self.misses = 0

    @property
    def ready(self) -> int:
        """How many wait to be handed out."""
        return len(self._ready)

    @property
    def leased(self) -> int:
        """How many are handed out and not ended."""
        return self._admission.taken

    @property
    def waiting(self) -> int:
        """How many callers wait for one."""
        return self._admission.waiting

    @property
    def features(self) -> frozenset[Feature]:
        """As of the provider."""
        return self._provider.features

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """As of the provider."""
        await self._provider.delete_snapshot(snapshot_id)

    async def fill(self) -> None:
        """Wait until the pool is full.

        Raises:
            SandboxError: the pool is closed, or no sandbox of its spec can be made on this machine.
        """
        self._settle()
        await self._provider.probe()
        while self.ready < self._size:
            if self._closed:
                raise SandboxError("the pool is closed")
            self._refused = None
            self._filled.clear()
            self._refill()
            await self._filled.wait()
            if self._refused is not None:
                raise self._refused

    async def create(self, spec: SandboxSpec, *, wait_s: float | None = None) -> BubblewrapSandbox:
        """A ready sandbox of this spec, within ``wait_s`` seconds where all are in use.

        Raises:
            Full: the queue is full, or the time passed in it.
            SandboxError: the pool is closed; others as of the provider's ``create``.
        """
        if self._closed:
            raise SandboxError("the pool is closed")
        self._settle()
        await self._admission.enter(self._wait_s if wait_s is None else wait_s)
        try:
            sandbox = await self._take(spec)
        except BaseException:
            self._admission.leave()
            raise
        sandbox.when_ended(lambda ended: self._admission.leave())
        return sandbox

    async def _take(self, spec: SandboxSpec) -> BubblewrapSandbox:
        if self._closed:
            raise SandboxError("the pool is closed")
        if _key(spec) != self._key:
            self.misses += 1
            return await self._provider.create(spec)
        while self._ready:
            sandbox = self._ready.popleft()
            if sandbox.alive:
                self.hits += 1
                self._provider.assign(sandbox, spec.owner, spec.ttl_s)
                asyncio.get_running_loop().call_soon(self._refill)
                return sandbox
        self._refill()
        self.misses += 1
        return await self._provider.create(spec)

    async def close(self) -> None:
        """Stop refilling and terminate every sandbox, those that were handed out too."""
        self._settle()
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._ready.clear()
        self._filled.set()
        await self._provider.close()

    def _settle(self) -> None:
        """As the provider: what was made or waited for in an event loop that has ended is not in this one."""
        self._provider.settle()
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._loop = loop
            self._filled = asyncio.Event()
            self._ready.clear()
            self._tasks.clear()

    def _refill(self) -> None:
        if self._refused is not None:
            return
        missing = self._size - self.ready - len(self._tasks)
        for _ in range(min(missing, self._refillers - len(self._tasks))):
            if not self._closed:
                task = asyncio.ensure_future(self._make())
                self._tasks.add(task)
                task.add_done_callback(self._made)

    async def _make(self) -> None:
        try:
            sandbox = await self._provider.create(self._spec)
            self._ready.append(sandbox)
            sandbox.when_ended(self._repair)
        except _FINAL as error:
            self._refused = error  # no other answer is to be hoped for
        except SandboxError as error:
            _log.warning("the pool could not make a sandbox, and tries again: %s", error)
            await asyncio.sleep(_RETRY_S)

    def _repair(self, ended: BubblewrapSandbox) -> None:
        """One that waited has died: another takes its place."""
        if ended in self._ready:
            self._ready.remove(ended)
            _log.warning("a sandbox of the pool died while it waited, and is replaced: %s", ended.why)
            self._refill()

    def _made(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._filled.set()
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._refused = error if isinstance(error, Exception) else None
            raise error
        if self._refused is None:
            self._refill()


def _key(spec: SandboxSpec) -> SandboxSpec:
    """What must agree for a ready sandbox to serve; mappings compare by content."""
    return replace(spec, owner="", ttl_s=1.0, env=dict(spec.env))
