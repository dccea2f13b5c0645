"""Finds short runs of ids in long ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def places(ids: NDArray[np.int64], wanted: Sequence[int]) -> NDArray[np.int64]:
    """Where a short run of ids begins in a long one: int64, ascending; none for an empty run."""
    import numpy as np

    size = len(ids) - len(wanted) + 1
    if not wanted or size <= 0:
        return np.zeros(0, dtype=np.int64)
    found = np.ones(size, dtype=np.bool_)
    for index, token in enumerate(wanted):
        found &= ids[index : index + size] == token
    return np.flatnonzero(found)
