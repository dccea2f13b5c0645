"""Checks of columns that types and readers share. Each error names the column."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dressage_segments.errors import InvalidFieldError

_FEW = 2**12
_HIGHEST_BYTE = 3 if sys.byteorder == "little" else 0
_minimum, _maximum = np.minimum.reduce, np.maximum.reduce
"""The reductions themselves: the methods of an array come to them through functions of Python."""

LOGPROB_TOLERANCE = 1e-4
"""A natural log probability may exceed 0 by this much from rounding in the engine's float32."""


def check_column(name: str, array: object, dtype: type[np.generic], length: int | None = None) -> None:
    """Raise InvalidFieldError unless ``array`` is 1-D, of exactly ``dtype`` and, if given, ``length``."""
    if not isinstance(array, np.ndarray):
        raise InvalidFieldError(name, f"must be a numpy array, got {type(array).__name__}")
    if array.dtype != dtype or array.ndim != 1:
        raise InvalidFieldError(
            name, f"must be 1-D {np.dtype(dtype)}, got {array.dtype} of shape {array.shape}"
        )
    if length is not None and len(array) != length:
        raise InvalidFieldError(name, f"has {len(array)} entries, must have {length}")


def check_range(name: str, array: NDArray[Any], low: int, high: int | None = None) -> None:
    """Raise InvalidFieldError unless every entry is in [low, high]; names the first that is not."""
    if not array.size or (_minimum(array, None) >= low and (high is None or _maximum(array, None) <= high)):
        return
    bad = array < low
    if high is not None:
        bad = bad | (array > high)
    where = np.flatnonzero(bad)
    if len(where):
        span = f"[{low}, {high}]" if high is not None else f"≥ {low}"
        raise InvalidFieldError(name, f"entry {where[0]} is {array[where[0]]}, must be {span}")


def check_floor(name: str, array: NDArray[np.int32], low: int) -> None:
    """Raise InvalidFieldError unless every entry of int32 [N] is at least ``low``, a number not above 0."""
    # A few hundred entries are looked at faster as bytes. What has no sign has a highest byte below 128, and
    # that is what ASCII has.
    if array.size > _FEW or not array.tobytes()[_HIGHEST_BYTE::4].isascii():
        check_range(name, array, low)


def check_where(name: str, bad: NDArray[np.bool_], rule: str) -> None:
    """Raise InvalidFieldError with ``rule`` and the first position at which ``bad`` is true."""
    where = np.flatnonzero(bad)
    if len(where):
        raise InvalidFieldError(name, f"entry {where[0]} breaks: {rule}")


def usable_logprobs(logprobs: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Where a logprob is finite and ≤ 0 (within :data:`LOGPROB_TOLERANCE`), bool [T]."""
    return np.isfinite(logprobs) & (logprobs <= LOGPROB_TOLERANCE)


def check_experts(experts: object) -> None:
    """Raise InvalidFieldError unless ``experts`` are uint8 or uint16 [R, layers, topk]."""
    good = isinstance(experts, np.ndarray) and experts.ndim == 3 and experts.dtype in (np.uint8, np.uint16)
    if not good:
        found = (
            f"{experts.dtype} {experts.shape}" if isinstance(experts, np.ndarray) else type(experts).__name__
        )
        raise InvalidFieldError("experts", f"must be uint8 or uint16 [R, layers, topk], got {found}")
