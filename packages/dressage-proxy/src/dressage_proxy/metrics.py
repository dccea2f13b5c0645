"""Prometheus metrics of one proxy process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from dressage_proxy.cachehits import ExpectedHit, Owner

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """Counters and histograms under one registry, so that several apps can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "dressage_requests",
            "Model calls by dialect and status; what fails within a stream counts by the error that it tells",
            ["dialect", "status"],
            registry=self.registry,
        )
        self.sampled_tokens = Counter(
            "dressage_sampled_tokens", "Tokens sampled and committed", registry=self.registry
        )
        self.trained_tokens = Counter(
            "dressage_trained_tokens", "Tokens of finalised sessions with mask 1", registry=self.registry
        )
        self.lost_tokens = Counter(
            "dressage_lost_tokens", "Sampled tokens not trained, by cause", ["cause"], registry=self.registry
        )
        self.undelivered = Counter(
            "dressage_undelivered_turns", "Turns whose client was gone", registry=self.registry
        )
        self.in_flight = Gauge("dressage_in_flight_calls", "Engine calls under way", registry=self.registry)
        self.paused = Gauge("dressage_paused", "1 while all sessions are paused", registry=self.registry)
        self.waiting = Gauge("dressage_waiting_turns", "Turns held until a resume", registry=self.registry)
        self.unversioned = Gauge(
            "dressage_unversioned_engines",
            "Engines whose weight version is no number: nothing of them is trained",
            registry=self.registry,
        )
        self.sessions = Gauge("dressage_open_sessions", "Sessions in memory", registry=self.registry)
        self.prompt_tokens = Counter(
            "dressage_prompt_tokens", "Tokens of committed turns' prompts", registry=self.registry
        )
        self.cached_tokens = Counter(
            "dressage_cached_tokens",
            "Prompt tokens in engines' prefix caches: as expected, and as engines report",
            ["kind"],
            registry=self.registry,
        )
        self.uncached_tokens = Counter(
            "dressage_cache_misses_tokens",
            "Prompt tokens of an earlier prompt that were not cached, by whose doing it was",
            ["owner"],
            registry=self.registry,
        )
        self.expired = Counter(
            "dressage_expired_sessions", "Sessions that ended idle", registry=self.registry
        )
        self._phases = Histogram(
            "dressage_phase_seconds",
            "Time of a model call by phase; paused is what it waited for a resume, where it did",
            ["phase"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._children = {
            name: self._phases.labels(name) for name in ("encode", "engine", "commit", "paused")
        }
        self._router = self.uncached_tokens.labels(Owner.ROUTER.value)
        self._expected, self._reported = map(self.cached_tokens.labels, ("expected", "reported"))

    def cache(self, hit: ExpectedHit, prompt_tokens: int, reported: int | None) -> None:
        """Count what of a prompt was expected to be cached and what was; ``reported`` None: not said."""
        self.prompt_tokens.inc(prompt_tokens)
        self._expected.inc(hit.tokens)
        if hit.broken:
            self.uncached_tokens.labels(hit.owner.value).inc(hit.broken)
        if reported is not None:
            self._reported.inc(reported)
            self._router.inc(max(0, hit.tokens - reported))

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Time one phase: encode or commit."""
        return _Timed(self._children[name])

    @contextmanager
    def sampling(self, held_s: Callable[[], float]) -> Iterator[None]:
        """Time the phases engine and paused, of which ``held_s`` tells at the end how long the second was."""
        started = time.perf_counter()
        try:
            yield
        finally:
            held = held_s()
            self._children["engine"].observe(max(0.0, time.perf_counter() - started - held))
            if held:
                self._children["paused"].observe(held)

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)


class _Timed(AbstractContextManager[None]):
    """Observes how long its block takes."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._histogram.observe(time.perf_counter() - self._started)
