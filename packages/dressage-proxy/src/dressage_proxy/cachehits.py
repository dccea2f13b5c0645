"""What of a prompt an engine should have had in its prefix cache, and whose doing it is where it had not."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from dressage_segments import ROOT, TrajectoryTree

from dressage_proxy.planning import Plan
from dressage_proxy.records import record

_AGENTS_DOING = frozenset(("history_changed", "tools_changed"))
_REFUSED = "refused_"


class Owner(StrEnum):
    """Who made the first byte that differs from what was cached."""

    AGENT = "agent"
    """It changed its history or its tools."""
    PROXY = "proxy"
    """The proxy began a new prompt for a reason of its own."""
    TEMPLATE = "template"
    """The chat template cannot continue what was sampled: the prompt was rendered again."""
    ROUTER = "router"
    """Nothing differs: the step went to another engine, or the engine had evicted it."""


@record
class ExpectedHit:
    """``tokens`` of the prompt are those of an earlier one. ``broken`` more would have been, had its owner
    not changed them."""

    tokens: int = 0
    broken: int = 0
    owner: Owner = Owner.ROUTER


def expected_hit(tree: TrajectoryTree, planned: Plan) -> ExpectedHit:
    """What to expect of a plan whose turn is not in the tree yet; O(prompt) where a branch is cut."""
    place = planned.place
    if place.parent != ROOT:
        return ExpectedHit(tree.end(place.parent))
    if not len(tree) or not place.cut_reason or place.cut_reason == "new_context":
        return ExpectedHit()
    before, prompt = tree.ids(len(tree) - 1), planned.prompt.ids
    size = min(len(before), len(prompt))
    differs = np.flatnonzero(before[:size] != prompt[:size])
    shared = int(differs[0]) if len(differs) else size
    return ExpectedHit(shared, len(before) - shared, _owner(place.cut_reason))


def _owner(cut_reason: str) -> Owner:
    if cut_reason in _AGENTS_DOING:
        return Owner.AGENT
    return Owner.TEMPLATE if cut_reason.startswith(_REFUSED) else Owner.PROXY
