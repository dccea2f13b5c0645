"""Integer columns in fewer bytes, without loss: small numbers in few bytes, and runs of equal ones.

It is on the path of every turn that is logged, so few array operations are made of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dressage_segments.errors import BufferFormatError

MAX_RUN_ENTRIES = 2**24
"""How many entries runs may stand for: so much memory at most is asked for by a few damaged bytes."""

_PLANES = 3
_INT32_BYTES = 4
_RUN_BYTES = 8
_LITTLE = {np.dtype(code) for code in ("<i2", "<i4", "<i8", "<u2", "<u4", "<u8")}
_BYTE = np.dtype(np.uint8)
_INT32 = np.dtype(np.int32)


def narrow(array: NDArray[Any]) -> NDArray[Any]:
    """Integers [N] in the fewest bytes that hold each of them: uint8 [N], uint16 [N], uint8 [3, N] (24 bits,
    the lowest plane first), or ``array`` itself where nothing is smaller or a number is negative."""
    if array.ndim != 1 or array.dtype not in _LITTLE or not array.size:
        return array
    bits = int(np.bitwise_or.reduce(array))  # every bit that any of them has, a negative one's sign too
    if bits < 0:
        return array
    if bits < 2**8:
        return array.astype(_BYTE)
    if bits < 2**16 and array.itemsize > 2:
        return array.astype(np.uint16)
    if bits < 2**24 and array.itemsize > 2:
        single = np.ascontiguousarray(array).view(_BYTE)
        planes: NDArray[Any] = single.reshape(-1, array.itemsize).T[:_PLANES]
        return planes
    return array


def widen(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """What :func:`narrow` was given, of ``dtype``. Raises BufferFormatError for what it never makes."""
    if dtype.kind not in "iu":
        raise BufferFormatError(f"{dtype} has no narrow form")
    if array.ndim == 2 and len(array) == _PLANES and array.dtype == np.uint8 and dtype in _LITTLE:
        if dtype.itemsize > _PLANES:
            wide = np.zeros((array.shape[1], dtype.itemsize), np.uint8)
            wide.T[:_PLANES] = array
            return wide.reshape(-1).view(dtype)
    elif array.ndim == 1:
        if array.dtype == dtype:
            return array
        if array.dtype in (np.uint8, np.uint16) and array.itemsize < dtype.itemsize:
            return array.astype(dtype)
    raise BufferFormatError(f"{array.dtype} of shape {array.shape} is no narrow form of {dtype}")


def to_runs(array: NDArray[Any]) -> NDArray[np.int32] | None:
    """Integers [N] as int32 [R, 2] of (value, how often); None where that takes as many bytes or more, or
    where the first two already differ (such a column seldom has runs)."""
    if array.ndim != 1 or not 2 <= array.size <= MAX_RUN_ENTRIES or array.item(0) != array.item(1):
        return None
    changes = (array[1:] != array[:-1]).nonzero()[0]
    count = changes.size + 1
    if count * _RUN_BYTES >= array.nbytes:
        return None
    ends = np.empty(count, _INT32)
    ends[:-1] = changes
    ends[-1] = array.size - 1
    values = array[ends]
    if array.itemsize >= _INT32_BYTES and array.dtype != _INT32 and (values.astype(_INT32) != values).any():
        return None
    runs = np.empty((count, 2), _INT32)
    runs[:, 0] = values
    runs[:, 1] = ends
    runs[0, 1] += 1
    if count > 1:
        runs[1:, 1] -= ends[:-1]
    return runs


def from_runs(runs: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """What :func:`to_runs` was given, of ``dtype``. Raises BufferFormatError for what it never makes."""
    if runs.dtype != np.int32 or runs.ndim != 2 or runs.shape[1] != 2 or not len(runs):
        raise BufferFormatError(f"{runs.dtype} of shape {runs.shape} are no runs: int32 [R, 2] are")
    check_lengths(runs[:, 1], None)
    values = runs[:, 0].astype(dtype)
    if dtype.kind not in "iu" or not (values == runs[:, 0]).all():
        raise BufferFormatError(f"the values of runs do not fit {dtype}")
    return np.repeat(values, runs[:, 1])


def check_lengths(lengths: NDArray[np.int32], total: int | None) -> None:
    """Raise BufferFormatError unless every length is at least 1 and they add up to ``total``, or to no more
    than :data:`MAX_RUN_ENTRIES` where that is None."""
    if lengths.size and int(lengths.min()) < 1:
        raise BufferFormatError("a run is shorter than 1")
    found = int(lengths.sum(dtype=np.int64))
    if total is None and found > MAX_RUN_ENTRIES:
        raise BufferFormatError(f"runs of {found} entries, {MAX_RUN_ENTRIES} are the most")
    if total is not None and found != total:
        raise BufferFormatError(f"runs of {found} entries, there are {total} tokens")
