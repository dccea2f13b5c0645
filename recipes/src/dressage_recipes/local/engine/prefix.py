"""Keys of finished requests, found again by the prompts that extend them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

SHORTEST = 8
"""Shorter prompts are not kept."""


def shared_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading ids two lists share, by bisection over comparisons of slices."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class PrefixStore:
    """Saved keys by their ids, least recently used dropped first beyond ``capacity`` bytes."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._bytes = 0
        self._entries: OrderedDict[bytes, tuple[NDArray[np.int32], list[Tensor]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, ids: Sequence[int], saved: list[Tensor]) -> None:
        """Keep ``saved`` for prompts that begin with some of ``ids``. An entry that it extends is dropped."""
        size = sum(part.numel() * part.element_size() for part in saved)
        if len(ids) < SHORTEST or size > self._capacity:
            return
        ids_t = np.asarray(ids, dtype=np.int32)
        for key, (other, _) in list(self._entries.items()):
            if len(other) <= len(ids_t) and np.array_equal(other, ids_t[: len(other)]):
                self._drop(key)
        self._entries[ids_t.tobytes()] = (ids_t, saved)
        self._bytes += size
        while self._bytes > self._capacity:
            self._drop(next(iter(self._entries)))

    def longest(self, ids: Sequence[int]) -> tuple[int, list[Tensor] | None]:
        """The longest shared prefix and the keys that hold it, or (0, None)."""
        ids_t = np.asarray(ids, dtype=np.int32)
        best, best_key = 0, b""
        for key, (other, _) in self._entries.items():
            size = min(len(other), len(ids_t))
            if size <= best or other[best] != ids_t[best]:
                continue
            differs = np.flatnonzero(other[:size] != ids_t[:size])
            shared = int(differs[0]) if differs.size else size
            if shared > best:
                best, best_key = shared, key
        if not best:
            return 0, None
        self._entries.move_to_end(best_key)
        return best, self._entries[best_key][1]

    def clear(self) -> None:
        """Drop everything."""
        self._entries.clear()
        self._bytes = 0

    def _drop(self, key: bytes) -> None:
        _, saved = self._entries.pop(key)
        self._bytes -= sum(part.numel() * part.element_size() for part in saved)
