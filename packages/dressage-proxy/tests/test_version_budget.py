"""Switches of weight versions are counted over known versions, in their order."""

from __future__ import annotations

import itertools

import numpy as np
from dressage_proxy.versions import VersionBudget
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.lists(st.integers(-1, 3), max_size=6), max_size=6))
def test_switches_are_counted_over_all_that_is_seen(replies: list[list[int]]) -> None:
    budget = VersionBudget(limit=3)
    for reply in replies:
        budget.sees(np.array(reply, np.int32))
    known = [version for reply in replies for version in reply if version >= 0]
    assert budget.used == sum(one != two for one, two in itertools.pairwise(known))
    assert budget.last == (known[-1] if known else -1)
    assert budget.spent == (budget.used >= 3)
