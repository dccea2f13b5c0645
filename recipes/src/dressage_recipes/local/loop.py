"""The loop: roll out, read, train, push, acknowledge, again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
from dressage_proxy.client import ProxyClient
from dressage_segments import Batch, expand, grpo
from safetensors.torch import save_file

from dressage_recipes.errors import RecipeError
from dressage_recipes.events import Activity, Note, OnEvent, StepDone
from dressage_recipes.local.config import LocalConfig
from dressage_recipes.local.failures import FailureLog
from dressage_recipes.local.metrics import Metrics, Value
from dressage_recipes.local.rollouts import Collected, Collector
from dressage_recipes.local.summary import Account
from dressage_recipes.local.trainer import GrpoTrainer, StepStats
from dressage_recipes.local.transcripts import Transcripts
from dressage_recipes.local.work import Source


class LoopError(RecipeError):
    """The loop cannot go on."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the loop works with. ``weights``: the folder that new weights are handed over in."""

    trainer: GrpoTrainer
    source: Source
    collector: Collector
    client: ProxyClient
    http: httpx.AsyncClient
    engine_url: str
    weights: Path
    metrics: tuple[Metrics, ...]
    failures: FailureLog
    transcripts: Transcripts


class Loop:
    """On-policy GRPO: every step's rollouts are sampled by the weights that the step then trains."""

    def __init__(self, config: LocalConfig, parts: Parts, account: Account, on_event: OnEvent) -> None:
        self._config = config
        self._parts = parts
        self._account = account
        self._on_event = on_event
        self._version = 0

    async def run(self) -> None:
        """All steps. Raises LoopError where no rollout of a step can be counted."""
        for step in range(1, self._config.steps + 1):
            await self._step(step)

    async def push(self) -> None:
        """Give the engine the trainer's weights under the next version; nothing is sampled meanwhile."""
        parts, version = self._parts, self._version + 1
        paused = await parts.client.pause(timeout_s=30.0)
        if not paused.quiesced:
            raise LoopError("the proxy did not come to rest before a weight update")
        await asyncio.to_thread(
            save_file, parts.trainer.changed_weights(), str(parts.weights / "model.safetensors")
        )
        response = await parts.http.post(
            f"{parts.engine_url}/update_weights_from_disk",
            json={"model_path": str(parts.weights), "weight_version": str(version)},
            timeout=60.0,
        )
        if response.status_code != 200:
            raise LoopError(f"the engine refused new weights: {response.text[:300]}")
        await parts.client.resume(version)
        self._version = version

    async def _step(self, step: int) -> None:
        started = time.perf_counter()
        works = self._parts.source.draw(step, self._config.rollouts.prompts)
        collected = await self._parts.collector.collect(step, works, self._tell("rollouts"))
        self._parts.transcripts.record(step, collected.shown)
        for told in self._parts.failures.record(step, collected.failures):
            self._on_event(Note(told))
        self._check(step, collected)
        rolled = time.perf_counter()
        batch = expand(
            collected.trajectories, partial(grpo, normalise_std=self._config.training.normalise_std)
        )
        self._on_event(Activity(f"training on {batch.trained_tokens:,} tokens"))
        stats = await asyncio.to_thread(self._parts.trainer.step, batch)
        sampled_by = self._version
        await self.push()
        await self._parts.collector.acknowledge(collected.trajectories)
        ended = time.perf_counter()
        self._record(collected, batch, stats)
        seconds = ended - started
        done = StepDone(
            step=step,
            steps=self._config.steps,
            reward=collected.reward,
            tokens_per_s=batch.sampled_tokens / seconds,
            seconds=seconds,
            sampled_tokens=batch.sampled_tokens,
            trained_tokens=batch.trained_tokens,
            version=sampled_by,
        )
        self._on_event(done)
        values = _values(done, collected, batch, stats, rolled - started)
        for place in self._parts.metrics:
            place.log(step, values)

    def _check(self, step: int, collected: Collected) -> None:
        if not collected.counted:
            why = self._parts.failures.commonest(collected.failures)
            raise LoopError(
                f"no rollout of step {step} could be counted: {why}",
                fix=f"see {self._parts.failures.path} for each",
            )

    def _record(self, collected: Collected, batch: Batch, stats: StepStats) -> None:
        account = self._account
        account.rewards.append(collected.reward)
        account.sampled += batch.sampled_tokens
        account.trained += batch.trained_tokens
        account.lost.update(batch.lost_tokens)
        account.classes.update(collected.classes)
        account.gap = max(account.gap, stats.logprob_gap_max)

    def _tell(self, what: str) -> Callable[[int, int], None]:
        return lambda done, total: self._on_event(Activity(f"{done}/{total} {what}"))


def _values(
    done: StepDone, collected: Collected, batch: Batch, stats: StepStats, rollout_s: float
) -> Mapping[str, Value]:
    return {
        "reward": done.reward,
        "counted_rollouts": collected.counted,
        "turns": collected.turns,
        "failure_classes": dict(collected.classes),
        "sampled_tokens": done.sampled_tokens,
        "trained_tokens": done.trained_tokens,
        "lost_tokens": dict(batch.lost_tokens),
        "version": done.version,
        "loss": stats.loss,
        "groups": stats.groups,
        "dead_groups": stats.dead_groups,
        "logprob_gap_max": stats.logprob_gap_max,
        "logprob_gap_mean": stats.logprob_gap_mean,
        "clip_fraction": stats.clip_fraction,
        "kl": stats.kl,
        "entropy": stats.entropy,
        "grad_norm": stats.grad_norm,
        "lr": stats.lr,
        "stepped": stats.stepped,
        "seconds": done.seconds,
        "rollout_seconds": rollout_s,
        "train_seconds": stats.seconds,
        "tokens_per_s": done.tokens_per_s,
    }
