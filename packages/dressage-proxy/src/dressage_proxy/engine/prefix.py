"""What an engine's prefix cache holds, as far as the proxy can tell from what it sent there."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

BLOCK_TOKENS = 256
"""Prefixes are compared in blocks of so many tokens: a shorter one is never expected to be cached."""

Chain = Sequence[int]
"""A prompt as hashes of its whole blocks, each over all blocks before it too."""


def chain(ids: NDArray[np.int32], block: int = BLOCK_TOKENS) -> list[int]:
    """The chain of token ids int32 [T]: O(T), a hash for each whole block."""
    data = np.ascontiguousarray(ids).tobytes()
    size = block * ids.itemsize
    made: list[int] = []
    before = 0
    for start in range(0, len(data) - size + 1, size):
        before = hash((before, data[start : start + size]))
        made.append(before)
    return made


class PrefixCache:
    """An estimate of one engine's radix cache: the blocks of what was sent there, the least used forgotten.

    ``capacity_tokens`` should be the engine's own ``max_total_num_tokens``; 0 is no limit.
    """

    def __init__(self, capacity_tokens: int, block: int = BLOCK_TOKENS) -> None:
        self._block = block
        self._capacity = max(1, capacity_tokens // block) if capacity_tokens else 0
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def cached_tokens(self, prompt: Chain) -> int:
        """How much of the prompt should be cached. A block is kept only as long as those before it."""
        low, high = 0, len(prompt)
        while low < high:
            middle = (low + high + 1) // 2
            if prompt[middle - 1] in self._blocks:
                low = middle
            else:
                high = middle - 1
        return low * self._block

    def touch(self, prompt: Chain) -> None:
        """The engine was given this prompt. Its first blocks become the newest: leaves are evicted first."""
        for block in reversed(prompt):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while self._capacity and len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)

    def correct(self, prompt: Chain, cached_tokens: int) -> None:
        """The engine said that no more than ``cached_tokens`` of the prompt had been cached."""
        for block in itertools.islice(prompt, -(-cached_tokens // self._block), None):
            self._blocks.pop(block, None)
