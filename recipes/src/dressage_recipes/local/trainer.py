"""GRPO on token evidence: a clipped ratio against behaviour logprobs, on tokens with mask 1 alone.

The loss is a sum over trained tokens, each with the weight that :func:`dressage_segments.token_weights` gave
its sample, so neither the cut into segments nor the fall into micro-batches changes it (promise P4).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from dressage_segments import Batch, Sample, Weighting, token_weights
from dressage_segments.denominators import DeadGroups
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from dressage_recipes.errors import StoppedError, UsageError
from dressage_recipes.local.packing import batches, pack, trained


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """Optimisation settings. ``clip_low``/``clip_high`` bound the importance ratio to [1-low, 1+high]."""

    lr: float = 5e-4
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    clip_low: float = 0.2
    clip_high: float = 0.2
    max_grad_norm: float = 1.0
    epochs: int = 1
    minibatches: int = 1
    """Optimiser steps an epoch; prompt groups are never split over two."""
    micro_tokens: int = 512
    """Packed tokens of one forward and backward (see :mod:`packing`); the attention mask is their square."""
    warmup_steps: int = 0
    decay: float = 0.0
    """How much of the learning rate is gone, linearly, after ``total_steps``."""
    total_steps: int = 0
    weighting: Weighting = Weighting.PROMPT
    dead_groups: DeadGroups = DeadGroups.COUNT
    temperature: float = 1.0
    """What rollouts are sampled with: the trainer's logits are divided by it."""
    trainable_layers: int | None = None
    """Train only the last decoder layers (all, where there are fewer); None: everything."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class StepStats:
    """What a training step did. Gaps and rates are over trained tokens; ``logprob_gap_max`` and
    ``logprob_gap_mean`` compare with the engine at the weights before the first optimiser step."""

    stepped: bool
    loss: float
    tokens: int
    groups: int
    dead_groups: int
    logprob_gap_max: float
    logprob_gap_mean: float
    clip_fraction: float
    kl: float
    entropy: float
    grad_norm: float
    lr: float
    seconds: float


@dataclass(slots=True)
class _Sums:
    """Running sums over micro-batches."""

    loss: float = 0.0
    tokens: int = 0
    clipped: float = 0.0
    kl: float = 0.0
    entropy: float = 0.0
    gap_max: float = 0.0
    gap_sum: float = 0.0
    gap_tokens: int = 0


class GrpoTrainer:
    """Trains a causal LM in place. Parameters that are not float32 are stepped through float32 masters."""

    def __init__(
        self, model: PreTrainedModel, config: TrainerConfig, *, stop: threading.Event | None = None
    ) -> None:
        """``stop`` ends a step that is under way at its next micro-batch, with StoppedError."""
        self.model = model
        self.config = config
        self._stop = stop or threading.Event()
        self._steps = 0
        self._rng = np.random.default_rng(config.seed)
        self._params = list(_select(model, config.trainable_layers))
        self._masters = [
            p if p.dtype == torch.float32 else torch.nn.Parameter(p.detach().float()) for p in self._params
        ]
        self._optimizer = torch.optim.AdamW(
            self._masters, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay
        )

    @property
    def steps(self) -> int:
        """Calls of :meth:`step` so far."""
        return self._steps

    def step(self, batch: Batch) -> StepStats:
        """Train on one batch of rollouts. A batch without a trained token or without any advantage leaves
        the weights and the optimiser alone. Raises FloatingPointError for a gradient that is not finite,
        StoppedError (weights and optimiser as before that update) when asked to stop."""
        started = time.perf_counter()
        lr = self._schedule()
        self._steps += 1
        sums = _Sums()
        norms: list[float] = []
        first = True
        groups, dead = 0, 0
        for _ in range(self.config.epochs):
            for samples in self._minibatches(batch.samples):
                weights = token_weights(samples, self.config.weighting, dead_groups=self.config.dead_groups)
                groups, dead = groups + weights.groups, dead + weights.dead_groups
                if not any(w and s.advantage for w, s in zip(weights.per_sample, samples, strict=True)):
                    continue
                self.accumulate(samples, weights.per_sample, sums if first else _Sums(), gap=first)
                norms.append(self._apply(lr))
                first = False
        tokens = max(sums.tokens, 1)
        return StepStats(
            stepped=bool(norms),
            loss=sums.loss,
            tokens=sums.tokens,
            groups=groups,
            dead_groups=dead,
            logprob_gap_max=sums.gap_max,
            logprob_gap_mean=sums.gap_sum / max(sums.gap_tokens, 1),
            clip_fraction=sums.clipped / tokens,
            kl=sums.kl / tokens,
            entropy=sums.entropy / tokens,
            grad_norm=max(norms, default=0.0),
            lr=lr,
            seconds=time.perf_counter() - started,
        )

    def save(self, folder: Path) -> None:
        """Write the model (safetensors and config) into ``folder``."""
        self.model.save_pretrained(folder)

    def changed_weights(self) -> dict[str, Tensor]:
        """The trained parameters by name, to be pushed to engines."""
        mine = {id(p) for p in self._params}
        return {name: p.detach().contiguous() for name, p in self.model.named_parameters() if id(p) in mine}

    def logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """The model's logprobs of each sample's trained tokens, float32 [trained], in order."""
        rows = [np.zeros(0, np.float32) for _ in samples]
        with torch.no_grad():
            for row, sample in enumerate(samples):
                if sample.trained_tokens:
                    rows[row] = self._forward([sample])[0].numpy()
        return rows

    def accumulate(
        self, samples: Sequence[Sample], weights: NDArray[np.float64], sums: _Sums, *, gap: bool
    ) -> None:
        """Add the loss gradient of ``samples`` to the parameters' ``grad``; ``weights`` float64 [samples]."""
        useful = [
            (sample, float(weight))
            for sample, weight in zip(samples, weights, strict=True)
            if weight and sample.advantage and sample.trained_tokens
        ]
        for rows in batches([sample for sample, _ in useful], self.config.micro_tokens):
            if self._stop.is_set():
                self.model.zero_grad(set_to_none=True)
                raise StoppedError("the training step was asked to stop")
            self._backward([useful[row] for row in rows], sums, gap)

    def _backward(self, micro: Sequence[tuple[Sample, float]], sums: _Sums, gap: bool) -> None:
        rows = [sample for sample, _ in micro]
        logps_t, entropy_t = self._forward(rows)
        old_t = torch.from_numpy(np.concatenate([s.logprobs[trained(s)] for s in rows]))
        counts = torch.tensor([len(trained(s)) for s in rows])
        advantage_t = torch.tensor([s.advantage for s in rows], dtype=torch.float32).repeat_interleave(counts)
        weight_t = torch.tensor([w for _, w in micro], dtype=torch.float32).repeat_interleave(counts)
        delta_t = logps_t - old_t
        ratio_t = delta_t.exp()
        clipped_t = ratio_t.clamp(1 - self.config.clip_low, 1 + self.config.clip_high)
        objective_t = torch.minimum(ratio_t * advantage_t, clipped_t * advantage_t)
        loss = -(objective_t * weight_t).sum()
        loss.backward()
        with torch.no_grad():
            sums.loss += loss.item()
            sums.tokens += len(old_t)
            sums.clipped += (ratio_t * advantage_t > clipped_t * advantage_t).sum().item()
            sums.kl += (ratio_t - 1 - delta_t).sum().item()
            sums.entropy += entropy_t.sum().item()
            if gap:
                sums.gap_max = max(sums.gap_max, delta_t.abs().max().item())
                sums.gap_sum += delta_t.abs().sum().item()
                sums.gap_tokens += len(old_t)

    def _forward(self, rows: Sequence[Sample]) -> tuple[Tensor, Tensor]:
        """Logprobs and entropies float32 [trained tokens of all rows], row after row."""
        packed = pack(rows)
        # Only positions before a trained token get logits at all. Frozen layers below the first trained one
        # keep nothing for the backward pass: none of their inputs wants a gradient.
        logits_kv = self.model(
            input_ids=torch.from_numpy(packed.ids).unsqueeze(0),
            position_ids=torch.from_numpy(packed.positions).unsqueeze(0),
            attention_mask=torch.from_numpy(packed.visible)[None, None],
            use_cache=False,
            logits_to_keep=torch.from_numpy(packed.sources),
        ).logits[0]
        logps_kv = torch.log_softmax(logits_kv.float() / self.config.temperature, dim=-1)
        column_t = torch.from_numpy(packed.column)
        with torch.no_grad():
            entropy_k = -(logps_kv.exp() * logps_kv).sum(-1)
        return logps_kv[column_t, torch.from_numpy(packed.targets)], entropy_k[column_t]

    def _apply(self, lr: float) -> float:
        for param, master in zip(self._params, self._masters, strict=True):
            if master is not param:
                master.grad = None if param.grad is None else param.grad.float()
                param.grad = None
        norm = float(torch.nn.utils.clip_grad_norm_(self._masters, self.config.max_grad_norm))
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        if not math.isfinite(norm):
            raise FloatingPointError(f"the gradient norm is {norm} at step {self._steps}: lower lr")
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for param, master in zip(self._params, self._masters, strict=True):
                if master is not param:
                    param.copy_(master)
        return norm

    def _schedule(self) -> float:
        config = self.config
        warm = min(1.0, (self._steps + 1) / config.warmup_steps) if config.warmup_steps else 1.0
        gone = config.decay * self._steps / config.total_steps if config.total_steps else 0.0
        return config.lr * warm * max(0.0, 1.0 - gone)

    def _minibatches(self, samples: Sequence[Sample]) -> Iterator[list[Sample]]:
        groups: dict[str, list[Sample]] = {}
        for sample in samples:
            groups.setdefault(sample.group_id, []).append(sample)
        order = self._rng.permutation(len(groups))
        names = list(groups)
        for part in np.array_split(order, min(self.config.minibatches, len(groups)) or 1):
            yield [sample for index in part for sample in groups[names[index]]]


def _select(model: PreTrainedModel, layers: int | None) -> Iterable[torch.nn.Parameter]:
    """Freeze what is not trained; yield what is. With ``layers`` the last decoder layers alone, or all of
    them where the model has fewer. Raises UsageError for a model without a list of layers."""
    if layers is None:
        yield from model.parameters()
        return
    # Every family keeps its decoder layers in one list, each under another name; no other list is as long.
    stacks = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    if not stacks:
        name = type(model).__name__
        raise UsageError(
            f"training.trainable_layers is {layers}: {name} has no list of layers", fix="unset it"
        )
    model.requires_grad_(False)
    longest = max(stacks, key=len)
    for layer in list(longest)[-layers:]:
        layer.requires_grad_(True)
        yield from layer.parameters()
