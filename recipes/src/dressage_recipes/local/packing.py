"""Rows with a common beginning as one sequence: what they share is computed once.

The rollouts of a group begin with the same prompt, and the segments of a trajectory with the same turns.
Packed, each token stands once and sees its own ancestors alone, at the position that it has in its own row,
so that logits (and gradients) are those of the rows one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from dressage_segments import Sample
from numpy.typing import NDArray

from dressage_recipes.local.engine.prefix import shared_length


@dataclass(frozen=True, slots=True)
class Packed:
    """One forward over N input tokens, for the T trained tokens of its samples, sample after sample.

    ``ids`` int64 [N]; ``positions`` int64 [N]; ``visible`` bool [N, N], row i true where token i attends.
    ``sources`` int64 [K], ascending: the inputs whose logits are needed. ``column`` int64 [T]: which of these
    scores each trained token. ``targets`` int64 [T]: the trained tokens.
    """

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    visible: NDArray[np.bool_]
    sources: NDArray[np.int64]
    column: NDArray[np.int64]
    targets: NDArray[np.int64]


def trained(sample: Sample) -> NDArray[np.intp]:
    """Positions with mask 1. Position 0 is never one: nothing precedes it."""
    return np.flatnonzero(sample.loss_mask)


def pack(samples: Sequence[Sample]) -> Packed:
    """Pack samples, each with at least one trained token. What follows a row's last one is left out."""
    inputs = [_inputs(sample) for sample in samples]
    ids: list[int] = []
    positions: list[int] = []
    paths: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * len(samples)
    # In this order, the row before shares more with a row than any earlier one does.
    before: list[int] = []
    path = np.zeros(0, np.int64)
    for row in sorted(range(len(samples)), key=lambda i: inputs[i]):
        shared = shared_length(before, inputs[row])
        before = inputs[row]
        fresh = np.arange(len(ids), len(ids) + len(before) - shared)
        path = np.concatenate([path[:shared], fresh])
        ids += before[shared:]
        positions += range(shared, len(before))
        paths[row] = path
    visible = np.zeros((len(ids), len(ids)), np.bool_)
    for path in paths:
        visible[np.ix_(path, path)] = np.tri(len(path), dtype=np.bool_)
    at = [trained(sample) for sample in samples]
    # The token at position t is scored by the logits at t - 1.
    sources, column = np.unique(
        np.concatenate([path[t - 1] for path, t in zip(paths, at, strict=True)]), return_inverse=True
    )
    return Packed(
        ids=np.array(ids, np.int64),
        positions=np.array(positions, np.int64),
        visible=visible,
        sources=sources,
        column=column,
        targets=np.concatenate([s.token_ids[t] for s, t in zip(samples, at, strict=True)]).astype(np.int64),
    )


def batches(samples: Sequence[Sample], tokens: int) -> Iterator[list[int]]:
    """Indices of samples to pack together: alike ones, at most ``tokens`` packed tokens, or one row."""
    inputs = [_inputs(sample) for sample in samples]
    batch: list[int] = []
    size = 0
    before: list[int] = []
    for row in sorted(range(len(samples)), key=lambda i: inputs[i]):
        fresh = len(inputs[row]) - shared_length(before, inputs[row])
        if batch and size + fresh > tokens:
            yield batch
            batch, size, fresh = [], 0, len(inputs[row])
        batch.append(row)
        size += fresh
        before = inputs[row]
    if batch:
        yield batch


def _inputs(sample: Sample) -> list[int]:
    """The ids before the last trained token."""
    last = trained(sample)[-1]
    ids: list[int] = sample.token_ids[:last].tolist()
    return ids
