"""The KV cache of the local engine: one row per running request, kept in a contiguous block."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel


class SlotCache(Cache):
    """Static keys and values for ``slots`` rows of at most ``length`` tokens, addressed by row and position.

    A forward works on the contiguous rows ``[first, first + batch)``: :meth:`aim` says which, and at which
    position each new token goes. Attention then gets views, so a decode step copies nothing. Layers are
    allocated at the first forward, from the shapes that the model itself produces.
    """

    def __init__(self, slots: int, length: int) -> None:
        # The parent's constructor wants a layer layout; only update() and the sizes are used here.
        self.slots = slots
        self.length = length
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        # What the masking utilities look through when they search for layers of other kinds.
        self.layers: list[Any] = []
        self._first = 0
        self._positions_bq: Tensor = torch.zeros((0, 0), dtype=torch.long)
        self._rows_b1: Tensor = torch.zeros((0, 1), dtype=torch.long)
        self._extent = 0

    def aim(self, first: int, positions_bq: Tensor, extent: int) -> None:
        """Address the next forward: rows from ``first``, positions int64 [B, Q], keys up to ``extent``."""
        self._first = first
        self._positions_bq = positions_bq
        self._rows_b1 = torch.arange(first, first + positions_bq.shape[0]).unsqueeze(1)
        self._extent = extent

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store [B, H, Q, D] at the aimed places and return views [B, H, extent, D]."""
        while len(self.keys) <= layer_idx:
            self.keys.append(_allocate(self.slots, self.length, key_states))
            self.values.append(_allocate(self.slots, self.length, value_states))
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        keys[self._rows_b1, :, self._positions_bq] = key_states.transpose(1, 2)
        values[self._rows_b1, :, self._positions_bq] = value_states.transpose(1, 2)
        last = self._first + key_states.shape[0]
        return keys[self._first : last, :, : self._extent], values[self._first : last, :, : self._extent]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Always 0: positions and masks are given explicitly with every forward."""
        return 0

    def move(self, source: int, target: int, tokens: int) -> None:
        """Copy the first ``tokens`` positions of row ``source`` over row ``target``."""
        for store in (*self.keys, *self.values):
            store[target, :, :tokens] = store[source, :, :tokens]

    def save(self, row: int, tokens: int) -> list[Tensor]:
        """A copy of the first ``tokens`` positions of a row: keys of all layers, then values."""
        return [store[row, :, :tokens].clone() for store in (*self.keys, *self.values)]

    def restore(self, row: int, saved: list[Tensor], tokens: int) -> None:
        """Write the first ``tokens`` positions of what :meth:`save` returned into a row."""
        for store, part in zip((*self.keys, *self.values), saved, strict=True):
            store[row, :, :tokens] = part[:, :tokens]


def _allocate(slots: int, length: int, like: Tensor) -> Tensor:
    return torch.zeros((slots, like.shape[1], length, like.shape[3]), dtype=like.dtype)


def cache_argument(model: PreTrainedModel) -> str:
    """The name under which this model's forward takes its cache (renamed within transformers 5)."""
    names = inspect.signature(type(model).forward).parameters
    return "cache" if "cache" in names else "past_key_values"
