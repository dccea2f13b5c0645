"""Which engine samples a session's next step: the rules, and the account of load that they go by.

No clock and no connection in here, so that a simulation runs the very code that serves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from dressage_proxy.engine.prefix import Chain, PrefixCache
from dressage_proxy.records import record

DECODE_WEIGHT = 8.0
"""What a token to sample counts beside one to prefill: decoding reads all weights again for each step of a
batch, prefill shares one reading among thousands of tokens."""
UNKNOWN_CACHE_TOKENS = 1 << 24
"""What an engine's prefix cache is taken to hold where nobody says: more than most do, and yet an end to what
is remembered of it."""
_FIRST_OUTPUT = 256.0
_SMOOTHING = 0.05


class Choice(StrEnum):
    """The rules by name."""

    STICKY = "sticky"
    LEAST_LOADED = "least-loaded"
    PREFIX_AWARE = "prefix-aware"


@record
class Step:
    """A call to place. ``prompt`` is its chain (empty: unknown), ``max_tokens`` what it may sample."""

    session_id: str
    prompt_tokens: int
    max_tokens: int
    prompt: Chain = ()


@dataclass(slots=True)
class EngineLoad:
    """One engine as the rules see it. ``work`` is what was given to it and has not ended: tokens that it must
    prefill, and tokens to sample times DECODE_WEIGHT. ``tokens`` is the plain sum."""

    url: str
    cache: PrefixCache
    work: float = 0.0
    tokens: float = 0.0
    calls: int = 0


class Chooser(Protocol):
    """A rule. ``reads_prefixes`` says whether ``Step.prompt`` is worth making."""

    reads_prefixes: bool

    def choose(self, step: Step, engines: Sequence[EngineLoad]) -> EngineLoad:
        """One of ``engines``, which are not empty and in the session's own order."""
        ...


class Sticky:
    """Always the same engine for a session: its prefix is cached there, whatever the load."""

    reads_prefixes = False

    def choose(self, step: Step, engines: Sequence[EngineLoad]) -> EngineLoad:
        """The first of the session's order."""
        return engines[0]


class LeastLoaded:
    """The engine with the fewest outstanding tokens, prompt and reply, whatever is cached where."""

    reads_prefixes = False

    def choose(self, step: Step, engines: Sequence[EngineLoad]) -> EngineLoad:
        """The least; of equals the first of the session's order."""
        return min(engines, key=lambda engine: engine.tokens)


class PrefixAware:
    """The engine that is likely to be done first: its outstanding work, and what it would have to prefill.

    ``slots`` is how many calls share an engine's step before one more delays the others by its whole work.
    """

    reads_prefixes = True

    def __init__(self, slots: float = 8.0) -> None:
        self._slots = slots

    def choose(self, step: Step, engines: Sequence[EngineLoad]) -> EngineLoad:
        """The least cost; of equals the first of the session's order."""

        def cost(engine: EngineLoad) -> float:
            return engine.work / self._slots + step.prompt_tokens - engine.cache.cached_tokens(step.prompt)

        return min(engines, key=cost)


def chooser(choice: Choice) -> Chooser:
    """The rule of that name."""
    rules: Mapping[Choice, type[Sticky] | type[LeastLoaded] | type[PrefixAware]] = {
        Choice.STICKY: Sticky,
        Choice.LEAST_LOADED: LeastLoaded,
        Choice.PREFIX_AWARE: PrefixAware,
    }
    return rules[choice]()


@record
class Ticket:
    """A step that was given to an engine, and what it counts there until it ends."""

    url: str
    step: Step
    expected_cached: int
    work: float
    tokens: float


@dataclass(slots=True)
class Book:
    """The account: who was given what. Used from one event loop, or one simulation."""

    rule: Chooser
    cache_tokens: int = 0
    """What an engine's prefix cache holds; 0: not known."""
    engines: dict[str, EngineLoad] = field(default_factory=dict)
    _gone: dict[str, EngineLoad] = field(default_factory=dict)
    """Engines that were removed with steps under way: they may come back before these have ended."""
    _output: float = _FIRST_OUTPUT

    def add(self, url: str) -> None:
        """A further engine; a known one stays as it is."""
        if url not in self.engines:
            fresh = EngineLoad(url, PrefixCache(self.cache_tokens or UNKNOWN_CACHE_TOKENS))
            self.engines[url] = self._gone.pop(url, fresh)

    def remove(self, url: str) -> None:
        """An engine that is gone. Its tickets may still be ended."""
        engine = self.engines.pop(url, None)
        if engine is not None and engine.calls:
            self._gone[url] = engine

    def place(self, step: Step, urls: Sequence[str]) -> Ticket:
        """Choose among ``urls``, which are known and not empty, and note the load."""
        order = urls if len(urls) == 1 else sorted(urls, key=lambda url: _weight(url, step.session_id))
        engine = self.rule.choose(step, [self.engines[url] for url in order])
        cached = engine.cache.cached_tokens(step.prompt) if step.prompt else 0
        output = min(self._output, step.max_tokens)
        work = step.prompt_tokens - cached + DECODE_WEIGHT * output
        ticket = Ticket(engine.url, step, cached, work, step.prompt_tokens + output)
        engine.work += ticket.work
        engine.tokens += ticket.tokens
        engine.calls += 1
        # At once, and not at the end: calls that share the prompt may come while this one runs.
        engine.cache.touch(step.prompt)
        return ticket

    def end(self, ticket: Ticket, output_tokens: int | None) -> None:
        """A step ended. ``output_tokens`` None: it failed, and its prompt may not have been cached."""
        engine = self.engines.get(ticket.url) or self._gone.get(ticket.url)
        if output_tokens is not None:
            self._output += _SMOOTHING * (output_tokens - self._output)
        if engine is None:
            return
        engine.work = max(0.0, engine.work - ticket.work)
        engine.tokens = max(0.0, engine.tokens - ticket.tokens)
        engine.calls -= 1
        if not engine.calls:
            self._gone.pop(ticket.url, None)
        if output_tokens is None:
            engine.cache.correct(ticket.step.prompt, ticket.expected_cached)

    def grown(self, url: str, walk: Chain) -> None:
        """The engine holds the ids of this chain now: a prompt and what was sampled after it."""
        engine = self.engines.get(url)
        if engine is not None:
            engine.cache.touch(walk)


def _weight(url: str, session_id: str) -> bytes:
    """Rendezvous hashing: the same in every process, and an engine more or less moves few sessions."""
    return hashlib.blake2b(f"{url} {session_id}".encode(), digest_size=8).digest()
