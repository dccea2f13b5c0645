"""What a segment repeats of the segment that it branched from: nothing of it need be kept twice."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dressage_segments.trajectory import COLUMNS, Segment


class Shared(NamedTuple):
    """How much of a segment's beginning is its parent's: tokens (masked here), call ids, rows of experts."""

    tokens: int = 0
    calls: int = 0
    experts: int = 0


def shared_prefix(segment: Segment, parent: Segment | None) -> Shared:
    """All of the first ``branch_offset`` tokens if every column but the mask is the parent's there, and the
    mask 0, as the contract has it; else nothing."""
    tokens = segment.branch_offset
    if parent is None or not tokens or tokens > len(parent) or segment.loss_mask[:tokens].any():
        return Shared()
    for name in COLUMNS:
        if name != "loss_mask" and not _same(getattr(segment, name)[:tokens], getattr(parent, name)[:tokens]):
            return Shared()
    calls = max(int(segment.call[:tokens].max()) + 1, 0)
    if segment.calls[:calls] != parent.calls[:calls]:
        return Shared()
    return Shared(tokens, calls, _shared_experts(segment, parent, tokens))


def _same(left: NDArray[Any], right: NDArray[Any]) -> bool:
    return bool((left == right).all())


def _shared_experts(segment: Segment, parent: Segment, tokens: int) -> int:
    """Leading rows that are the parent's. The last shared token's row may differ: each branch's next call
    routed it anew."""
    ours, theirs, rows, others = segment.experts, parent.experts, segment.experts_rows, parent.experts_rows
    if ours is None or theirs is None or rows is None or others is None:
        return 0
    if ours.dtype != theirs.dtype or ours.shape[1:] != theirs.shape[1:]:
        return 0
    count = min(int(np.count_nonzero(rows < tokens)), len(others))
    differ = rows[:count] != others[:count]
    differ |= (ours[:count] != theirs[:count]).any(axis=(1, 2))
    return int(differ.argmax()) if differ.any() else count
