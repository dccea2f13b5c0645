"""The scripted engine's scheduler: which calls run, how far each got, what pauses and aborts do to them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any


class Run:
    """A call in the engine. ``started`` is None while it is queued; ``spans`` are (first token, version)."""

    def __init__(self, rid: str, total: int, version: str) -> None:
        self.rid = rid
        self.total = total
        self.started: float | None = None
        self.spans: list[tuple[int, str]] = [(0, version)]
        self.tokens = total
        """Tokens that it got to; less than ``total`` once aborted."""
        self.aborted = asyncio.Event()

    @property
    def version(self) -> str:
        """The version of its newest tokens."""
        return self.spans[-1][1]


class Scheduler:
    """Runs calls in one event loop. A token costs ``delay_s``; with ``hold_after = n`` a call waits for an
    abort or for ``release`` once it has sampled n tokens."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self.hold_after: int | None = None
        self._runs: set[Run] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._changed = asyncio.Condition()

    @property
    def idle(self) -> bool:
        """Whether a call is done as soon as it comes."""
        return self.delay_s <= 0 and self.hold_after is None and self._open.is_set()

    @property
    def paused(self) -> bool:
        """Whether new calls wait."""
        return not self._open.is_set()

    def __len__(self) -> int:
        return len(self._runs)

    async def until(self, count: int) -> None:
        """Wait until exactly ``count`` calls are here."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._runs) == count)

    async def release(self) -> None:
        """Let held calls go on."""
        self.hold_after = None
        await self._notify()

    def pause(self) -> None:
        """Let no call start, and none end unless it is aborted."""
        self._open.clear()

    def resume(self) -> None:
        """Undo ``pause``."""
        self._open.set()

    def abort(self, prefix: str) -> int:
        """Abort the calls whose rid starts with ``prefix``, as SGLang's scheduler matches; how many."""
        hit = [run for run in self._runs if run.rid.startswith(prefix)]
        for run in hit:
            self._abort(run)
        return len(hit)

    def relabel(self, version: str) -> None:
        """What runs goes on under another version."""
        for run in self._runs:
            if not run.aborted.is_set():
                run.spans.append((self._emitted(run), version))

    async def run(self, run: Run, receive: Callable[[], Awaitable[MutableMapping[str, Any]]]) -> None:
        """Bring a call to its end: done, aborted, or its client gone."""
        if self._open.is_set():
            run.started = asyncio.get_running_loop().time()
        self._runs.add(run)
        await self._notify()
        watch = asyncio.create_task(self._watch(run, receive))
        work = asyncio.create_task(self._work(run))
        aborted = asyncio.create_task(run.aborted.wait())
        try:
            await asyncio.wait({work, aborted}, return_when=asyncio.FIRST_COMPLETED)
            if not run.aborted.is_set():
                work.result()
        finally:
            for task in (watch, work, aborted):
                task.cancel()
            self._runs.discard(run)
            await self._notify()

    async def _work(self, run: Run) -> None:
        if run.started is None:
            await self._open.wait()
            run.started = asyncio.get_running_loop().time()
        if self.delay_s > 0:
            await asyncio.sleep(self.delay_s * run.total)
        async with self._changed:
            await self._changed.wait_for(lambda: self.hold_after is None or self.hold_after >= run.total)
        await self._open.wait()

    async def _watch(self, run: Run, receive: Callable[[], Awaitable[MutableMapping[str, Any]]]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._abort(run)

    def _abort(self, run: Run) -> None:
        if not run.aborted.is_set():
            run.tokens = self._emitted(run)
            run.aborted.set()

    def _emitted(self, run: Run) -> int:
        if run.started is None:
            return 0
        done = run.total if self.hold_after is None else min(self.hold_after, run.total)
        if self.delay_s > 0:
            passed = asyncio.get_running_loop().time() - run.started
            done = min(done, math.floor(passed / self.delay_s))
        return done

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
