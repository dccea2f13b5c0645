"""A reply in the making: what one engine call after the other sampled of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from dressage_segments import EngineCall
from numpy.typing import NDArray

from dressage_proxy.engine.experts import Experts
from dressage_proxy.engine.wire import CallResult

_T = TypeVar("_T", bound=np.generic)


@dataclass(slots=True)
class Reply:
    """What was sampled so far. ``ids`` int32 [N], ``logprobs`` float32 [N], ``versions`` int32 [N] are the
    calls' outputs one after the other."""

    pieces: list[CallResult] = field(default_factory=list)
    calls: list[EngineCall] = field(default_factory=list)
    finish_reason: str = "abort"
    matched: int | str | None = None
    """The stop id or string that ended it."""
    experts_start: int = 0
    """The first position whose routed experts this reply has, where they are asked for."""
    held_s: float = 0.0
    """How long it waited in pauses; 0 where it met none."""

    @property
    def tokens(self) -> int:
        """Ids kept so far."""
        return sum(len(piece.output_ids) for piece in self.pieces)

    @property
    def sampled(self) -> int:
        """Ids sampled so far, with those that were dropped past a stop string."""
        return sum(call.output_tokens + call.dropped_tokens for call in self.calls)

    @property
    def cached_tokens(self) -> int | None:
        """What of its prompt the engine had cached; None: it did not say."""
        return self.pieces[0].cached_tokens if self.pieces else None

    @property
    def ids(self) -> NDArray[np.int32]:
        """All sampled ids."""
        return _join([piece.output_ids for piece in self.pieces], np.int32)

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """Their logprobs."""
        return _join([piece.logprobs for piece in self.pieces], np.float32)

    @property
    def versions(self) -> NDArray[np.int32]:
        """Their weight versions."""
        return _join([piece.versions for piece in self.pieces], np.int32)

    @property
    def experts(self) -> Experts | None:
        """Routed experts [R, layers, topk] of the positions from ``experts_start`` on, or None."""
        rows: list[NDArray[Any]] = [piece.experts for piece in self.pieces if piece.experts is not None]
        return np.concatenate(rows) if rows else None

    @property
    def experts_end(self) -> int:
        """The first position whose experts are not known yet: where the next call asks from."""
        rows = (len(piece.experts) for piece in self.pieces if piece.experts is not None)
        return self.experts_start + sum(rows)


def _join(arrays: list[NDArray[_T]], dtype: type[_T]) -> NDArray[_T]:
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)
