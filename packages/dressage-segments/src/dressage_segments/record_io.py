"""A log record as bytes: one safetensors buffer whose integer columns take as few bytes as they need.

A column that is kept otherwise than it is says so in its tensor's name: ``delta_ids|I32`` holds int32 numbers
in fewer bytes, ``versions|I32|runs`` holds runs of them. All other columns are kept as they are.
"""

from __future__ import annotations

import json
from typing import Any

from numpy.typing import NDArray

from dressage_segments.bytewise import usual
from dressage_segments.errors import BufferFormatError, InvalidFieldError
from dressage_segments.narrow import from_runs, narrow, to_runs, widen
from dressage_segments.protocols import LogRecord
from dressage_segments.safetensors_io import (
    Buffer,
    Part,
    dtype_name,
    named_dtype,
    pack_parts,
    part,
    unpack,
)
from dressage_segments.segment_io import to_json

RECORD_SCHEMA = "dressage.record/2"
RECORD_SCHEMA_1 = "dressage.record/1"
"""Every column as it is. Still read."""

_MARK = "|"
_RUNS = "runs"


def record_to_bytes(record: LogRecord) -> bytes:
    """One record as one safetensors buffer. Raises InvalidFieldError for meta that JSON cannot hold, and for
    a column whose name has a ``|``."""
    meta = to_json(f"meta of a {record.kind!r} record", record.meta)
    parts = [_coded(name, array) for name, array in record.arrays.items()]
    return pack_parts(parts, {"schema": RECORD_SCHEMA, "kind": record.kind, "meta": meta})


def record_from_bytes(buffer: Buffer) -> LogRecord:
    """The record of a buffer. Columns kept unchanged are views into it. Raises BufferFormatError."""
    tensors, metadata = unpack(buffer)
    schema = metadata.get("schema")
    if schema == RECORD_SCHEMA:
        arrays = dict(_decoded(name, tensor) for name, tensor in tensors.items())
        if len(arrays) != len(tensors):
            raise BufferFormatError("not a log record: a column comes twice")
    elif schema == RECORD_SCHEMA_1:
        arrays = tensors
    else:
        raise BufferFormatError(f"schema is {schema!r}, must be {RECORD_SCHEMA!r} or {RECORD_SCHEMA_1!r}")
    try:
        kind, meta = metadata["kind"], json.loads(metadata["meta"])
    except (KeyError, ValueError, RecursionError) as error:
        raise BufferFormatError(f"not a log record: {error}") from error
    if not isinstance(meta, dict):
        raise BufferFormatError(f"not a log record: meta is {type(meta).__name__}, must be an object")
    return LogRecord(kind, meta, arrays)


def _coded(name: str, array: NDArray[Any]) -> Part:
    if _MARK in name:
        raise InvalidFieldError(name, f"has a {_MARK!r} in its name", "name the column otherwise")
    return usual(name, array) or part(*coded_by_numpy(name, array))


def coded_by_numpy(name: str, array: NDArray[Any]) -> tuple[str, NDArray[Any]]:
    """A column of any kind in the form that takes the fewest bytes, and the name that says which it is."""
    if array.ndim != 1 or array.dtype.kind not in "iu":
        return name, array
    runs = to_runs(array)
    if runs is None or runs.nbytes > len(array):
        small = narrow(array)
        if runs is None or runs.nbytes > small.nbytes:
            return (name, array) if small is array else (f"{name}{_MARK}{dtype_name(array.dtype)}", small)
    return f"{name}{_MARK}{dtype_name(array.dtype)}{_MARK}{_RUNS}", runs


def _decoded(full_name: str, tensor: NDArray[Any]) -> tuple[str, NDArray[Any]]:
    name, *form = full_name.split(_MARK)
    if not form:
        return name, tensor
    dtype = named_dtype(form[0])
    try:
        if len(form) == 1:
            return name, widen(tensor, dtype)
        if form[1:] == [_RUNS]:
            return name, from_runs(tensor, dtype)
    except BufferFormatError as error:
        raise BufferFormatError(f"column {name!r}: {error}") from error
    raise BufferFormatError(f"column {name!r} is of the form {form[1:]}, which this reader does not know")
