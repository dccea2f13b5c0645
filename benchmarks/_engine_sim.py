"""Simulated engines with prefix caches under the proxy's own choice of engines: a discrete-event simulation.

An engine batches continuously: a step decodes one token for each running call and prefills some of what
waits.
Its time is a base, a share for each running call and for what its attention reads, and a share for each token
to prefill. Clocks and sizes are those of a mid-size mixture-of-experts model on one accelerator; what is
compared are rules on one and the same load.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from dataclasses import dataclass, field

from dressage_proxy.engine.choose import Book, Choice, Step, Ticket, chooser
from dressage_proxy.engine.prefix import BLOCK_TOKENS, PrefixCache

BASE_S = 0.008
PER_CALL_S = 0.00005
PER_CONTEXT_TOKEN_S = 6e-9
PER_PREFILL_S = 1 / 25_000
CHUNK_TOKENS = 8192
RUNNING = 64
CACHE_TOKENS = 600_000
"""Of keys and values: what runs must fit in, and what is left over is the prefix cache."""


@dataclass(frozen=True, slots=True)
class Load:
    """Multi-turn sessions in groups that share a first prompt. Medians and spreads are of log-normals."""

    name: str
    sessions: int = 640
    at_once: int = 160
    group: int = 8
    system_tokens: int = 3000
    task_tokens: int = 1000
    turns: tuple[float, float] = (8.0, 1.0)
    output: tuple[float, float] = (150.0, 1.1)
    result: tuple[float, float] = (500.0, 1.2)
    tool_s: tuple[float, float] = (1.0, 1.3)
    max_turns: int = 120
    max_context: int = 120_000


@dataclass(slots=True)
class Session:
    """One rollout: its turns are drawn beforehand, so that every rule meets the same ones."""

    name: str
    blocks: list[int]
    turns: list[tuple[int, int, float]]
    """Tokens that come in, tokens that are sampled, seconds that the tool takes after."""
    context: int = 0
    at: int = 0


@dataclass(slots=True)
class Call:
    """One step of a session at an engine."""

    session: Session
    ticket: Ticket
    asked_at: float
    prefill: int
    left: int


@dataclass(slots=True)
class Engine:
    """What one engine runs, waits with and holds."""

    cache: PrefixCache
    waiting: deque[Call] = field(default_factory=deque)
    running: list[tuple[int, int, Call]] = field(default_factory=list)
    """Heap by the step in which a call ends."""
    step: int = 0
    context: int = 0
    busy: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rule made of a load."""

    tokens_per_s: float
    """Until the last session ended: what a synchronous trainer waits for."""
    steady_tokens_per_s: float
    """Until the last session began: what an asynchronous trainer is fed with."""
    cached: float
    """Share of prompt tokens that came from a cache."""
    turn_p50_s: float
    turn_p95_s: float
    busy_spread: float
    """Sampled tokens of the engine with the most, over the mean."""


def sessions(load: Load, seed: int) -> list[Session]:
    """The rollouts of a load."""
    rng = random.Random(seed)
    numbers = itertools.count(1)

    def draw(median_spread: tuple[float, float]) -> float:
        median, spread = median_spread
        return median * rng.lognormvariate(0, spread)

    def fresh(tokens: int) -> list[int]:
        return [next(numbers) for _ in range(tokens // BLOCK_TOKENS)]

    system = fresh(load.system_tokens)
    made = []
    for number in range(load.sessions):
        if number % load.group == 0:
            task = fresh(load.task_tokens)
        turns = [
            (int(draw(load.result)), max(1, min(8192, int(draw(load.output)))), draw(load.tool_s))
            for _ in range(max(1, min(load.max_turns, round(draw(load.turns)))))
        ]
        session = Session(f"{seed}-{number:05d}", [*system, *task], turns)
        session.context = load.system_tokens + load.task_tokens
        # The blocks that its turns will add: a session's own, known to nobody else.
        grown = session.context + sum(came + sampled for came, sampled, _ in turns)
        session.blocks += fresh(grown - len(session.blocks) * BLOCK_TOKENS)
        made.append(session)
    return made


class Simulation:
    """One load under one rule."""

    def __init__(self, load: Load, choice: Choice, *, engines: int = 8, seed: int = 0) -> None:
        self._load = load
        self._book = Book(chooser(choice), CACHE_TOKENS)
        self._engines = {f"http://engine-{n}": Engine(PrefixCache(CACHE_TOKENS)) for n in range(engines)}
        for url in self._engines:
            self._book.add(url)
        self._todo = iter(sessions(load, seed))
        self._events: list[tuple[float, int, object, object]] = []
        self._order = itertools.count()
        self._latencies: list[float] = []
        self._sampled = dict.fromkeys(self._engines, 0)
        self._prompt = self._cached = 0
        self._all_begun: tuple[float, int] | None = None

    def run(self) -> Outcome:
        """Until the last session has ended."""
        for _ in range(self._load.at_once):
            self._begin(0.0)
        now = 0.0
        while self._events:
            now, _, kind, what = heapq.heappop(self._events)
            if kind == "turn":
                self._ask(now, what)  # type: ignore[arg-type]
            else:
                self._stepped(now, what)  # type: ignore[arg-type]
        times = sorted(self._latencies)
        assert self._all_begun is not None
        total = sum(self._sampled.values())
        return Outcome(
            tokens_per_s=total / now,
            steady_tokens_per_s=self._all_begun[1] / self._all_begun[0],
            cached=self._cached / self._prompt,
            turn_p50_s=times[len(times) // 2],
            turn_p95_s=times[int(len(times) * 0.95)],
            busy_spread=max(self._sampled.values()) * len(self._engines) / total,
        )

    def _at(self, when: float, kind: str, what: object) -> None:
        heapq.heappush(self._events, (when, next(self._order), kind, what))

    def _begin(self, now: float) -> None:
        session = next(self._todo, None)
        if session is not None:
            self._at(now, "turn", session)
        elif self._all_begun is None:
            self._all_begun = now, sum(self._sampled.values())

    def _ask(self, now: float, session: Session) -> None:
        came, sampled, _ = session.turns[session.at]
        session.context += came
        prompt = session.blocks[: session.context // BLOCK_TOKENS]
        step = Step(session.name, session.context, 8192, prompt)
        ticket = self._book.place(step, tuple(self._engines))
        engine = self._engines[ticket.url]
        engine.waiting.append(Call(session, ticket, now, session.context, sampled))
        self._wake(now, ticket.url, engine)

    def _wake(self, now: float, url: str, engine: Engine) -> None:
        """Begin the next step, if one is to be made."""
        if engine.busy or not (engine.waiting or engine.running):
            return
        budget, prefilled = CHUNK_TOKENS, 0
        while engine.waiting and budget > 0 and len(engine.running) < RUNNING:
            call = engine.waiting[0]
            if engine.running and engine.context + call.session.context > CACHE_TOKENS:
                break  # its keys and values have no room beside those of what runs
            if call.prefill == call.session.context:  # its first piece: what is cached need not be made
                cached = engine.cache.cached_tokens(call.ticket.step.prompt)
                self._prompt, self._cached = self._prompt + call.prefill, self._cached + cached
                call.prefill = max(1, call.prefill - cached)
            piece = min(budget, call.prefill)
            call.prefill -= piece
            budget, prefilled = budget - piece, prefilled + piece
            if call.prefill:
                break
            engine.waiting.popleft()
            engine.cache.touch(call.ticket.step.prompt)
            engine.context += call.session.context
            heapq.heappush(engine.running, (engine.step + call.left, next(self._order), call))
        engine.busy = True
        took = BASE_S + PER_CALL_S * len(engine.running) + PER_PREFILL_S * prefilled
        self._at(now + took + PER_CONTEXT_TOKEN_S * engine.context, "step", url)

    def _stepped(self, now: float, url: str) -> None:
        engine = self._engines[url]
        engine.busy = False
        engine.step += 1
        while engine.running and engine.running[0][0] <= engine.step:
            self._end(now, url, engine, heapq.heappop(engine.running)[2])
        self._wake(now, url, engine)

    def _end(self, now: float, url: str, engine: Engine, call: Call) -> None:
        session = call.session
        _, sampled, tool_s = session.turns[session.at]
        engine.context -= session.context
        session.context += sampled
        walk = session.blocks[: session.context // BLOCK_TOKENS]
        engine.cache.touch(walk)
        self._book.end(call.ticket, sampled)
        self._book.grown(url, walk)
        self._sampled[url] += sampled
        self._latencies.append(now - call.asked_at)
        session.at += 1
        if session.at < len(session.turns) and session.context < self._load.max_context:
            self._at(now + tool_s, "turn", session)
        else:
            self._begin(now)
