"""Continuous batching: requests join and leave at step boundaries, over one KV cache, in one thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from dressage_recipes.local.engine.kv import SlotCache, cache_argument
from dressage_recipes.local.engine.prefix import PrefixStore, shared_length
from dressage_recipes.local.engine.sampling import SamplingParams, distribution, draw

SHARE_FROM = 32
"""A request waits one step for another's prefill when they share at least this many uncached tokens."""


@dataclass(slots=True)
class Request:
    """One /generate request and what was sampled for it so far. ``done`` is called once, with the request."""

    rid: str
    prompt: list[int]
    params: SamplingParams
    done: Callable[[Request], None]
    ids: list[int] = field(default_factory=list)
    """Prompt and output; the last one has no keys in the cache yet."""
    cached: int = 0
    """Tokens whose keys are in the row."""
    reused: int = 0
    """Prompt tokens whose keys came from an earlier or a running request."""
    logprobs: list[float] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    generator: torch.Generator | None = None
    started: bool = False
    finish: dict[str, Any] | None = None

    @property
    def output(self) -> list[int]:
        """The sampled ids."""
        return self.ids[len(self.prompt) :]


class BatchEngine:
    """Decodes a batch of requests with one model. Not thread-safe: one thread calls everything.

    ``slots`` rows run at a time; others wait in order. Keys of finished requests are kept up to
    ``retain_bytes`` for prompts that extend them, and dropped when the weights change.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        slots: int,
        context_length: int,
        retain_bytes: int,
        stop_ids: Iterable[int] = (),
        version: str = "0",
        seed: int = 0,
    ) -> None:
        self.model = model.eval()
        self.context_length = context_length
        self.version = version
        self.stop_ids = frozenset(stop_ids)
        self.waiting: deque[Request] = deque()
        self.rows: list[Request] = []
        self.paused = False
        self.decoded = 0
        self._cache_name = cache_argument(model)
        # One position beyond the context takes the writes of padding.
        self._cache = SlotCache(slots, context_length + 1)
        self._kept = PrefixStore(retain_bytes)
        self._shared = torch.Generator().manual_seed(seed)

    @property
    def busy(self) -> bool:
        """Whether a step would do something."""
        return not self.paused and bool(self.rows or self.waiting)

    def submit(self, request: Request) -> None:
        """Queue a checked request."""
        request.ids = list(request.prompt)
        if request.params.sampling_seed is not None:
            # Mixed with the position, so that the turns of one rollout do not draw the same noise again.
            seed = request.params.sampling_seed * 1_000_003 + len(request.prompt)
            request.generator = torch.Generator().manual_seed(seed % (1 << 63))
        self.waiting.append(request)

    def abort(self, prefix: str | None) -> int:
        """End requests whose rid starts with ``prefix`` (None: all) with what they have. Returns how many."""
        hit = [r for r in (*self.rows, *self.waiting) if prefix is None or r.rid.startswith(prefix)]
        for request in hit:
            request.finish = {"type": "abort", "message": "aborted"}
        self.waiting = deque(r for r in self.waiting if r.finish is None)
        self._leave()
        for request in hit:
            if not request.started:
                request.done(request)
        return len(hit)

    def pause(self, mode: str) -> None:
        """Stop stepping. ``abort`` ends what runs, ``retract`` requeues it keyless, ``in_place`` waits."""
        self.paused = True
        if mode == "abort":
            self.abort(None)
        elif mode == "retract":
            for request in reversed(self.rows):
                request.cached = 0
                self.waiting.appendleft(request)
            self.rows.clear()

    def resume(self) -> None:
        """Step again."""
        self.paused = False

    def flush(self) -> None:
        """Forget the keys of finished requests."""
        self._kept.clear()

    def weights_changed(self, version: str) -> None:
        """Name the weights that sample from now on; keys of finished requests were of the old ones."""
        self.version = version
        self.flush()

    @torch.inference_mode()
    def step(self) -> None:
        """Admit what fits, prefill it, decode one token for every other row, let the finished leave."""
        if not self.busy:
            return
        running = len(self.rows)
        self._admit()
        if len(self.rows) > running:
            self._forward(running, self.rows[running:])
        if running:
            self._forward(0, self.rows[:running])
        self._leave()

    def _admit(self) -> None:
        fresh: list[Request] = []
        deferred: list[Request] = []
        while self.waiting and len(self.rows) < self._cache.slots:
            request = self.waiting.popleft()
            source = self._best_source(request)
            if any(
                shared_length(request.ids, other.ids) - max(source[0], other.cached) >= SHARE_FROM
                for other in fresh
            ):
                deferred.append(request)
                continue
            request.started = True
            self._reuse(request, len(self.rows), source)
            self.rows.append(request)
            fresh.append(request)
        self.waiting.extendleft(reversed(deferred))

    def _best_source(self, request: Request) -> tuple[int, int | None, list[Tensor] | None]:
        """The longest cached prefix: its length, and the row or the saved keys that hold it."""
        usable = len(request.ids) - 1
        tokens, saved = self._kept.longest(request.ids)
        best: tuple[int, int | None, list[Tensor] | None] = (min(tokens, usable), None, saved)
        for row, other in enumerate(self.rows):
            if other.cached <= best[0] or other.ids[best[0]] != request.ids[best[0]]:
                continue
            shared = min(shared_length(request.ids, other.ids), other.cached, usable)
            if shared > best[0]:
                best = (shared, row, None)
        return best

    def _reuse(self, request: Request, row: int, source: tuple[int, int | None, list[Tensor] | None]) -> None:
        tokens, other, saved = source
        if other is not None:
            self._cache.move(other, row, tokens)
        elif saved is not None:
            self._cache.restore(row, saved, tokens)
        request.cached = tokens
        request.reused = min(tokens, len(request.prompt))

    def _forward(self, first: int, rows: list[Request]) -> None:
        """Run the uncached ids of contiguous rows through the model and sample one token for each."""
        starts = np.array([r.cached for r in rows])
        counts = np.array([len(r.ids) - r.cached for r in rows])
        width, extent = int(counts.max()), int((starts + counts).max())
        ids_bq = np.zeros((len(rows), width), dtype=np.int64)
        for i, request in enumerate(rows):
            ids_bq[i, : counts[i]] = request.ids[request.cached :]
        real_bq = np.arange(width) < counts[:, None]
        positions_bq = np.where(real_bq, starts[:, None] + np.arange(width), 0)
        visible = torch.from_numpy(np.arange(extent) <= positions_bq[:, :, None]).unsqueeze(1)
        self._cache.aim(first, torch.from_numpy(np.where(real_bq, positions_bq, self.context_length)), extent)
        wanted, which = np.unique(counts - 1, return_inverse=True)
        logits_bqv = self.model(
            input_ids=torch.from_numpy(ids_bq),
            attention_mask=visible,
            position_ids=torch.from_numpy(positions_bq),
            use_cache=True,
            logits_to_keep=torch.from_numpy(wanted),
            **{self._cache_name: self._cache},
        ).logits
        self._sample(rows, logits_bqv[torch.arange(len(rows)), torch.from_numpy(which)])

    def _sample(self, rows: list[Request], logits_bv: Tensor) -> None:
        logps_bv = distribution(logits_bv, [r.params for r in rows])
        tokens_b = draw(logps_bv, [r.generator for r in rows], self._shared)
        chosen_b = logps_bv.gather(1, tokens_b.unsqueeze(1)).squeeze(1)
        for request, token, logprob in zip(rows, tokens_b.tolist(), chosen_b.tolist(), strict=True):
            request.cached = len(request.ids)
            request.ids.append(token)
            request.logprobs.append(logprob)
            request.versions.append(self.version)
            self._check_finish(request, token)
        self.decoded += len(rows)

    def _check_finish(self, request: Request, token: int) -> None:
        params = request.params
        if token in params.stop_token_ids or (token in self.stop_ids and not params.ignore_eos):
            request.finish = {"type": "stop", "matched": token}
        elif len(request.logprobs) >= params.max_new_tokens:
            request.finish = {"type": "length", "length": params.max_new_tokens}

    def _leave(self) -> None:
        """Take finished rows out; the last row moves into each hole, so that rows stay contiguous."""
        for row in range(len(self.rows) - 1, -1, -1):
            request = self.rows[row]
            if request.finish is None:
                continue
            if request.cached:
                self._kept.put(request.ids[: request.cached], self._cache.save(row, request.cached))
            last = self.rows.pop()
            if row < len(self.rows):
                self._cache.move(len(self.rows), row, last.cached)
                self.rows[row] = last
            request.done(request)
