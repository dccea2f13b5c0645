"""The usual columns of a turn, coded as :mod:`dressage_segments.narrow` codes them, by operations on bytes.

On some hundred entries an operation of numpy costs its call and little else; slices and comparisons of bytes
take a fifth of that. What is not usual is left to ``narrow``. Whoever codes a column, its bytes are the same.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dressage_segments.safetensors_io import Part

_RUN = struct.Struct("<ii")
_LEAST = _RUN.size
"""Of fewer entries a run may take more bytes than they do."""
_MOST = 2**12
"""Of more entries numpy is faster."""
_MOST_RUNS = 8
_INT32 = np.dtype("<i4")
_FLOAT32 = np.dtype("<f4")
_UINT8 = np.dtype(np.uint8)


def usual(name: str, array: NDArray[Any]) -> Part | None:
    """A column as it is written, or None where :mod:`~dressage_segments.narrow` has to see it."""
    if array.ndim == 1 and _LEAST <= array.size <= _MOST:
        if array.dtype == _INT32:
            return _int32(name, array)
        if array.dtype == _UINT8:
            return _uint8(name, array)
        if array.dtype == _FLOAT32:
            return Part(-4, name, "F32", str(array.size), array.nbytes, array.tobytes())
    return None


def _int32(name: str, array: NDArray[Any]) -> Part | None:
    """One number throughout, as versions are, or ids, which begin with two that differ: they have no runs."""
    size, raw = array.size, array.tobytes()
    first = raw[:4]
    if first == raw[4:8]:
        if raw != first * size:
            return None
        return Part(-4, f"{name}|I32|runs", "I32", "1,2", _RUN.size, _RUN.pack(array.item(0), size))
    zeros = bytes(size)
    if raw[3::4] != zeros:
        return Part(-4, name, "I32", str(size), 4 * size, raw)
    if (third := raw[2::4]) != zeros:
        return Part(-1, f"{name}|I32", "U8", f"3,{size}", 3 * size, b"".join((raw[0::4], raw[1::4], third)))
    if raw[1::4] != zeros:
        return Part(-2, f"{name}|I32", "U16", str(size), 2 * size, array.astype("<u2").tobytes())
    return Part(-1, f"{name}|I32", "U8", str(size), size, raw[0::4])


def _uint8(name: str, array: NDArray[Any]) -> Part | None:
    """A few runs, as origins are."""
    size, rest = array.size, array.tobytes()
    if rest[0] != rest[1]:
        return Part(-1, name, "U8", str(size), size, rest)
    runs: list[bytes] = []
    while rest:
        after = rest.lstrip(rest[:1])
        runs.append(_RUN.pack(rest[0], len(rest) - len(after)))
        if len(runs) > _MOST_RUNS or len(runs) * _RUN.size >= size:
            return None
        rest = after
    data = b"".join(runs)
    return Part(-4, f"{name}|U8|runs", "I32", f"{len(runs)},2", len(data), data)
