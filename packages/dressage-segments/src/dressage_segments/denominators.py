"""Weights of trained tokens in an optimiser step's loss, that do not depend on how trajectories were cut.

The loss is ``sum over samples s and tokens t of weight[s] * loss_mask[s, t] * x[s, t]``, with no further
division: any split of the samples into micro-batches adds up to the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from dressage_segments.errors import InvalidFieldError
from dressage_segments.samples import Sample


class Weighting(StrEnum):
    """What weighs the same as what."""

    PROMPT = "prompt"
    """Each prompt group: the mean over groups of the mean over the group's tokens."""
    ROLLOUT = "rollout"
    """Each rollout: the mean over rollouts of the mean over the rollout's tokens."""
    TOKEN = "token"
    """Each token: the mean over all tokens of the step."""


class DeadGroups(StrEnum):
    """What becomes of a group in which every advantage is 0 (equal rewards, or one rollout alone)."""

    COUNT = "count"
    """It is part of the denominators: where there was less to learn, the step is smaller."""
    DROP = "drop"
    """It weighs nothing: live groups share the whole step."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of one step. ``per_sample`` float64 [samples]: of each trained token of that sample."""

    per_sample: NDArray[np.float64]
    weighting: Weighting
    tokens: int
    """Trained tokens in the denominators; 0: nothing to learn, do not step the optimiser."""
    rollouts: int
    groups: int
    dead_groups: int
    """Groups of zero advantage that have trained tokens, counted or dropped; worth logging."""


def token_weights(samples: Sequence[Sample], weighting: Weighting, *, dead_groups: DeadGroups) -> Weights:
    """The weights of one optimiser step over all its samples, on every rank and in every micro-batch.

    Only tokens with mask 1 count; samples, rollouts and groups without any are in no denominator and weigh
    0, so an all-masked step is all zeros. Raises InvalidFieldError for a sample without a group id.
    """
    tokens = np.array([sample.trained_tokens for sample in samples], np.int64)
    for sample in samples:
        if not sample.group_id:
            raise InvalidFieldError("group_id", f"sample of rollout {sample.rollout_id!r} has none")
    learning = {s.group_id for s in samples if s.advantage != 0 and s.trained_tokens}
    trained = {s.group_id for s in samples if s.trained_tokens}
    if dead_groups is DeadGroups.DROP:
        tokens *= np.array([sample.group_id in learning for sample in samples], bool)
    units = _units(samples, weighting)
    unit_tokens: Counter[str] = Counter()
    for unit, count in zip(units, tokens.tolist(), strict=True):
        unit_tokens[unit] += count
    live = sum(count > 0 for count in unit_tokens.values())
    per_sample = np.zeros(len(samples), np.float64)
    for index, (unit, count) in enumerate(zip(units, tokens.tolist(), strict=True)):
        if count:
            per_sample[index] = 1.0 / (unit_tokens[unit] * live)
    alive = [sample for sample, count in zip(samples, tokens.tolist(), strict=True) if count]
    return Weights(
        per_sample=per_sample,
        weighting=weighting,
        tokens=int(tokens.sum()),
        rollouts=len({sample.rollout_id for sample in alive}),
        groups=len({sample.group_id for sample in alive}),
        dead_groups=len(trained - learning),
    )


def mask_sums(weights: Weights, global_batch_size: int) -> NDArray[np.float64]:
    """The same weights as the denominators that a trainer which divides by a mask sum and by the batch
    size wants, float64 [samples]; 0 where a sample weighs nothing.

    For prompt-equal weights that is ``M_P x N_P / global_batch_size`` with M_P the trained tokens of the
    sample's prompt and N_P the live prompts. Raises InvalidFieldError
    for a batch size below 1.
    """
    if global_batch_size < 1:
        raise InvalidFieldError("global_batch_size", f"is {global_batch_size}, must be at least 1")
    sums = np.zeros_like(weights.per_sample)
    np.divide(1.0, weights.per_sample * global_batch_size, out=sums, where=weights.per_sample > 0)
    return sums


def _units(samples: Sequence[Sample], weighting: Weighting) -> list[str]:
    if weighting is Weighting.PROMPT:
        return [sample.group_id for sample in samples]
    if weighting is Weighting.ROLLOUT:
        return [sample.rollout_id for sample in samples]
    return [""] * len(samples)
