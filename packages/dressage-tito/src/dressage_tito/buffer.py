"""A row of ids that grows in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # numpy is loaded when the first buffer is made
    import numpy as np
    from numpy.typing import NDArray


class TokenBuffer:
    """int32 ids of one session, appended to in amortised O(new) and read without a copy.

    ``ids`` may be given to ``ChatCodec.extend`` as it is. A view that was taken stays as it was, whatever is
    appended later.
    """

    def __init__(self, ids: Sequence[int] | NDArray[np.int32] = (), *, capacity: int = 1024) -> None:
        import numpy as np

        self._np = np
        self._array = np.zeros(max(capacity, len(ids), 1), dtype=np.int32)
        self._size = 0
        self.append(ids)

    def __len__(self) -> int:
        return self._size

    @property
    def ids(self) -> NDArray[np.int32]:
        """A read-only view of the ids, int32 [T]."""
        view = self._array[: self._size]
        view.flags.writeable = False
        return view

    def append(self, ids: Sequence[int] | NDArray[np.int32]) -> None:
        """Add ids at the end. Raises ValueError where one is no id (negative, or above 2**31 - 1)."""
        added = self._np.asarray(ids, dtype=self._np.int64)
        if added.size and (added.min() < 0 or added.max() > 0x7FFFFFFF):
            raise ValueError("ids must lie between 0 and 2**31 - 1")
        end = self._size + len(added)
        if end > len(self._array):
            grown = self._np.zeros(max(end, 2 * len(self._array)), dtype=self._np.int32)
            grown[: self._size] = self._array[: self._size]
            self._array = grown
        self._array[self._size : end] = added
        self._size = end

    def truncated(self, size: int) -> TokenBuffer:
        """A buffer of its own with the first ``size`` ids, for a branch. Raises ValueError for more."""
        if not 0 <= size <= self._size:
            raise ValueError(f"size is {size}: the buffer holds {self._size} ids")
        return TokenBuffer(self._array[:size])
