"""Growable typed columns: append costs O(new) amortised, reading is a view without a copy."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from dressage_segments.errors import InvalidFieldError

S = TypeVar("S", bound=np.generic)

_FIRST_CAPACITY = 64


class Column(Generic[S]):
    """A 1-D column of one dtype (int32, uint8, float32, …) that grows at its end.

    Views that were handed out stay valid and unchanged: an append writes only past their end, or into a
    new buffer. Values of another dtype are refused rather than cast.
    """

    __slots__ = ("_buffer", "_growth", "_length", "_locked", "_name")

    def __init__(
        self, dtype: type[S] | np.dtype[S], *, name: str = "column", capacity: int = 0, growth: float = 1.5
    ) -> None:
        if growth <= 1.0:
            raise InvalidFieldError("growth", f"must be above 1, got {growth}")
        self._hold(np.empty(capacity, dtype=dtype))
        self._length = 0
        self._name = name
        self._growth = growth

    def __len__(self) -> int:
        return self._length

    @property
    def nbytes(self) -> int:
        """Bytes held, spare capacity included."""
        return self._buffer.nbytes

    def append(self, values: NDArray[S]) -> None:
        """Append values [N] of the column's own dtype. Raises InvalidFieldError otherwise."""
        if values.dtype != self._buffer.dtype or values.ndim != 1:
            raise InvalidFieldError(
                self._name, f"must be 1-D {self._buffer.dtype}, got {values.dtype} of shape {values.shape}"
            )
        end = self._reserve(len(values))
        self._buffer[self._length : end] = values
        self._length = end

    def fill(self, value: Any, count: int) -> None:
        """Append ``value`` ``count`` times."""
        end = self._reserve(count)
        self._buffer[self._length : end] = value
        self._length = end

    def view(self) -> NDArray[S]:
        """What was appended so far, read-only, without a copy."""
        return self._locked[: self._length]

    def _reserve(self, count: int) -> int:
        end = self._length + count
        if end > len(self._buffer):
            capacity = max(int(end * self._growth), _FIRST_CAPACITY)
            grown = np.empty(capacity, self._buffer.dtype)
            grown[: self._length] = self._buffer[: self._length]
            self._hold(grown)
        return end

    def _hold(self, buffer: NDArray[S]) -> None:
        self._buffer = buffer
        self._locked = buffer[:]  # Read-only, and so is every slice of it.
        self._locked.flags.writeable = False
