"""The engines that a proxy samples from: which there are, which answer, and what each is doing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from dressage_segments import LossCause

from dressage_proxy.engine.choose import Book, Choice, Step, Ticket, chooser
from dressage_proxy.engine.client import EngineClient
from dressage_proxy.engine.complaints import Complaints
from dressage_proxy.engine.http import Exchange
from dressage_proxy.engine.labels import Labels
from dressage_proxy.engine.prefix import chain
from dressage_proxy.engine.prompt import Prompt
from dressage_proxy.engine.router import workers
from dressage_proxy.engine.wire import Call, CallResult
from dressage_proxy.errors import EngineError, PassingEngineError, RouterError, StrangeEngineError

_AWAY_S = 5.0
"""How long other engines are preferred to one that could not be reached."""
_FAILED_PROBES = 2
"""So many health checks in a row must fail: one may have met a busy moment."""
log = logging.getLogger("dressage.proxy")


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """``urls`` and ``router`` (a sglang-router's base URL) name the engines; both may be given."""

    urls: tuple[str, ...] = ()
    router: str | None = None
    choice: Choice = Choice.STICKY
    cache_tokens: int = 0
    refresh_s: float = 10.0
    """Interval of the router's worker list."""
    health_s: float = 5.0
    """Interval of health checks (made only where there is a choice) and of looks at weight versions."""
    timeout_s: float = 3600.0


class EnginePool:
    """Engines with their load and health. Used from one event loop; ``start`` it there."""

    def __init__(self, options: PoolOptions) -> None:
        self._options = options
        self._client = EngineClient(timeout_s=options.timeout_s)
        self._book = Book(chooser(options.choice), options.cache_tokens)
        self._away: dict[str, float] = {}
        self._failed: dict[str, int] = {}
        self._kept = False
        """The router names none, and the known engines stay."""
        self._labels = Labels()
        self._complaints = Complaints(time.monotonic)
        self._tasks: list[asyncio.Task[None]] = []
        self._aborting: dict[str, asyncio.Task[bool]] = {}
        for url in options.urls:
            self._book.add(url)

    async def start(self) -> None:
        """Open the connections, ask the router once, and watch from then on.

        Raises RouterError when the router does not answer and no engine is named beside it.
        """
        await self._client.start()
        if self._options.router is not None:
            await self._discover()
            if not self.urls:
                log.warning("the router %s names no healthy worker yet", self._options.router)
            self._tasks.append(asyncio.create_task(self._watch_router()))
        self._tasks.append(asyncio.create_task(self._watch_health()))

    async def close(self) -> None:
        """Stop watching and close the connections."""
        going_on = [*self._tasks, *self._aborting.values()]
        for task in going_on:
            task.cancel()
        await asyncio.gather(*going_on, return_exceptions=True)
        self._tasks.clear()
        await self._client.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def urls(self) -> tuple[str, ...]:
        """Base URLs of the engines that are known now."""
        return tuple(self._book.engines)

    @property
    def loads(self) -> Mapping[str, int]:
        """Calls under way by engine."""
        return {url: engine.calls for url, engine in self._book.engines.items()}

    @property
    def warnings(self) -> list[str]:
        """What is wrong with engines that do answer: their weights have no version number."""
        return self._labels.warnings

    def place(self, step: Step, prompt: Prompt, avoid: Collection[str] = ()) -> Ticket:
        """The engine for a step with this prompt; none of ``avoid`` if there is another.

        Raises EngineError where no engine is known.
        """
        usable = self._usable(avoid)
        if len(self._book.engines) > 1 and self._book.rule.reads_prefixes:
            step = Step(step.session_id, step.prompt_tokens, step.max_tokens, chain(prompt.ids))
        return self._book.place(step, usable)

    def others(self, tried: Collection[str]) -> bool:
        """Whether an engine is left that answers and was not tried."""
        return not set(self._usable(tried)) & set(tried)

    def end(self, ticket: Ticket, result: CallResult | None, prompt: Prompt) -> None:
        """A step with this prompt ended with this result (None: it failed)."""
        self._book.end(ticket, None if result is None else len(result.output_ids))
        if result is not None and ticket.step.prompt:
            self._book.grown(ticket.url, chain(np.concatenate([prompt.ids, result.output_ids])))

    def failed(self, ticket: Ticket, error: PassingEngineError) -> None:
        """A step failed in a way that may pass: others are preferred for a while."""
        strange = isinstance(error, StrangeEngineError)
        told = f"{error}: {error.detail}" if error.detail else str(error)
        if strange:
            told += "; check --engine or the router's workers, and what stands before them"
        self._complaints.note(ticket.url, told, logging.ERROR if strange else logging.WARNING)
        if ticket.url in self._book.engines and (error.unreachable or error.delay_s or strange):
            until = asyncio.get_running_loop().time() + max(error.delay_s or 0.0, _AWAY_S)
            self._away[ticket.url] = until

    def refused(self, ticket: Ticket, detail: str) -> None:
        """An engine refused what a step asked for."""
        self._complaints.note(ticket.url, f"a request is refused: {detail}", logging.WARNING)

    async def begin(self, engine: str, call: Call) -> Exchange:
        """See :meth:`EngineClient.begin`."""
        return await self._client.begin(engine, call)

    async def result(self, engine: str, call: Call, running: Exchange) -> CallResult:
        """See :meth:`EngineClient.result`."""
        result = await self._client.result(engine, call, running)
        self._away.pop(engine, None)
        if result.untrainable == LossCause.VERSION_RULE and result.finish_reason != "abort":
            self._labels.untrained(engine)
        return result

    async def abort(self, engine: str, rid: str) -> bool:
        """Ask an engine to abort a call. False when it did not take the request."""
        return await self._client.abort(engine, rid)

    async def abort_within(self, engine: str, rid: str, timeout_s: float) -> None:
        """As :meth:`abort`, but who asks waits no longer than that: an engine that hangs, or whose machine is
        gone, is asked on without them, and not a second time meanwhile: hundreds of calls may be given up."""
        asking = self._aborting.get(rid)
        if asking is None:
            asking = self._aborting[rid] = asyncio.create_task(self.abort(engine, rid))
            asking.add_done_callback(lambda _: self._aborting.pop(rid))
        await asyncio.wait({asking}, timeout=timeout_s)

    async def healthy(self, within_s: float | None = None) -> Mapping[str, bool]:
        """Which engines answer /health now, and ``within_s``."""

        async def asked(url: str) -> bool:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    return await self._client.healthy(url)
            return False

        urls = self.urls
        return dict(zip(urls, await asyncio.gather(*map(asked, urls)), strict=True))

    def _usable(self, avoid: Collection[str]) -> Sequence[str]:
        """The engines to choose among: the best of those that answer, that were not tried, or all."""
        urls = self.urls
        if not urls:
            raise EngineError(
                "no engine is known: the router names no healthy worker",
                retry_after_s=self._options.refresh_s,
            )
        if len(urls) == 1:
            return urls
        now = asyncio.get_running_loop().time()
        sound = [url for url in urls if self._failed.get(url, 0) < _FAILED_PROBES] or list(urls)
        near = [url for url in sound if self._away.get(url, 0.0) <= now] or sound
        return [url for url in near if url not in avoid] or near

    async def _discover(self) -> None:
        assert self._options.router is not None
        url = f"{self._options.router}/workers"
        try:
            found = workers(await self._client.get(url))
        except RouterError as error:
            if not self.urls:
                raise
            log.warning("%s; the engines known before stay", error)
            return
        self._take({*found, *self._options.urls})

    def _take(self, wanted: Collection[str]) -> None:
        """These are the engines now. A router that has just started names none, nor does one whose workers
        are all busy with new weights: the known ones stay; whether they answer shows when they are asked."""
        if not wanted and self.urls:
            if not self._kept:
                log.warning("the router names no healthy worker any more; the engines known before stay")
            self._kept = True
            return
        self._kept = False
        for new in sorted(set(wanted) - set(self.urls)):
            log.info("engine %s is a worker of the router now", new)
            self._book.add(new)
        for gone in sorted(set(self.urls) - set(wanted)):
            self._book.remove(gone)
            self._client.forget(gone)
            self._away.pop(gone, None)
            self._failed.pop(gone, None)
            log.warning("engine %s is no healthy worker of the router any more", gone)

    async def _watch_router(self) -> None:
        while True:
            await asyncio.sleep(self._options.refresh_s)
            with contextlib.suppress(RouterError):  # said in the log; the next look may find it again
                await self._discover()

    async def _watch_health(self) -> None:
        while True:
            unknown = self._labels.open(self.urls)
            for url, label in zip(
                unknown, await asyncio.gather(*map(self._client.label, unknown)), strict=True
            ):
                self._labels.note(url, label)
            await asyncio.sleep(self._options.health_s)
            if len(self.urls) > 1:
                self._note(await self.healthy())

    def _note(self, healthy: Mapping[str, bool]) -> None:
        for url, good in healthy.items():
            if url not in self._book.engines:
                continue  # it left while it was asked
            failed = 0 if good else self._failed.get(url, 0) + 1
            if failed == _FAILED_PROBES:
                log.warning("engine %s does not answer its health check: others are used", url)
            elif good and self._failed.get(url, 0) >= _FAILED_PROBES:
                log.info("engine %s answers again", url)
            self._failed[url] = failed
