"""A trajectory at rest: one safetensors buffer that takes a fraction of what its segments take on the wire.

What the columns repeat is kept once. Ids are kept in as few bytes as they need, logprobs where a token was
sampled, and everything else as runs: stretches of one origin, mask, version and call, in which the offset
counts up. A segment holds nothing of the prefix that it shares with its parent. A checksum in the header
covers every byte. Reading gives back the segments' own columns by array operations.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dressage_segments.errors import BufferFormatError
from dressage_segments.narrow import narrow
from dressage_segments.safetensors_io import Buffer, pack, unpack
from dressage_segments.segment_io import (
    build_segment,
    check_schema,
    enum_field,
    json_field,
    read_fields,
    segment_fields,
    text_field,
    to_json,
)
from dressage_segments.segment_runs import SegmentParts, rows_to_runs, to_runs
from dressage_segments.shared import Shared, shared_prefix
from dressage_segments.trajectory import Segment, Trajectory
from dressage_segments.vocabulary import FailureClass

TRAJECTORY_SCHEMA = "dressage.trajectory/2"
TRAJECTORY_SCHEMA_1 = "dressage.trajectory/1"
"""Every segment's columns as they are, and no checksum. Still read."""

_CHECK_START = b'{"__metadata__":{"crc32":"'
_CHECK_AT = 8 + len(_CHECK_START)
_NO_CHECK = b"0" * 8
_SHARED_FIELDS = ("session_id", "instance_id", "group_id", "rollout_id", "failure_class")


def trajectory_to_bytes(trajectory: Trajectory) -> bytes:
    """A trajectory as one safetensors buffer. Raises InvalidFieldError for one that breaks its contract: what
    is written can be read."""
    trajectory.validate()
    segments = trajectory.segments
    parts = [(s, shared_prefix(s, segments[s.parent] if s.parent >= 0 else None)) for s in segments]
    ids = [segment.token_ids[known.tokens :] for segment, known in parts]
    logprobs = [s.logprobs[k.tokens :][s.sampled[k.tokens :]] for s, k in parts]
    tensors: dict[str, NDArray[Any]] = {
        "token_ids": narrow(np.concatenate([np.empty(0, np.int32), *ids])),
        "logprobs": np.concatenate([np.empty(0, np.float32), *logprobs]),
        "runs": np.concatenate([np.empty((0, 6), np.int32), *(to_runs(s, k.tokens) for s, k in parts)]),
    }
    for index, (segment, known) in enumerate(parts):
        if segment.experts is not None and segment.experts_rows is not None:
            tensors[f"{index}.experts"] = segment.experts[known.experts :]
            tensors[f"{index}.experts_rows"] = rows_to_runs(segment.experts_rows[known.experts :])
    metadata = {"crc32": _NO_CHECK.decode(), "schema": TRAJECTORY_SCHEMA, **_fields(trajectory)}
    metadata["segments"] = to_json("segments", [_header(segment, known) for segment, known in parts])
    return _signed(pack(tensors, metadata))


def trajectory_from_bytes(buffer: Buffer) -> Trajectory:
    """The trajectory of a buffer; validated. Buffers of the first schema are read too.

    Raises BufferFormatError for bytes, schemas or metadata that are not a trajectory's, or not all of one's;
    InvalidFieldError for a column that breaks the contract.
    """
    signed = _check_signature(memoryview(buffer).cast("B"))
    tensors, metadata = unpack(buffer)
    check_schema(metadata, TRAJECTORY_SCHEMA if signed else TRAJECTORY_SCHEMA_1)
    read = _segments if signed else _segments_1
    trajectory = Trajectory(
        session_id=text_field(metadata, "session_id"),
        instance_id=text_field(metadata, "instance_id"),
        group_id=text_field(metadata, "group_id"),
        rollout_id=text_field(metadata, "rollout_id"),
        generation=json_field(metadata, "generation", int),
        segments=tuple(read(tensors, metadata)),
        failure_class=enum_field(FailureClass, metadata, "failure_class"),
        outcome=json_field(metadata, "outcome", dict),
        sampled_tokens=json_field(metadata, "sampled_tokens", int),
        trained_tokens=json_field(metadata, "trained_tokens", int),
        lost_tokens=_counts(json_field(metadata, "lost_tokens", dict)),
    )
    trajectory.validate()
    return trajectory


def _fields(trajectory: Trajectory) -> dict[str, str]:
    return {
        "session_id": trajectory.session_id,
        "instance_id": trajectory.instance_id,
        "group_id": trajectory.group_id,
        "rollout_id": trajectory.rollout_id,
        "failure_class": trajectory.failure_class.value,
        "generation": json.dumps(trajectory.generation),
        "outcome": to_json("outcome", trajectory.outcome),
        "sampled_tokens": json.dumps(trajectory.sampled_tokens),
        "trained_tokens": json.dumps(trajectory.trained_tokens),
        "lost_tokens": to_json("lost_tokens", dict(trajectory.lost_tokens)),
    }


def _counts(found: dict[str, Any]) -> dict[str, int]:
    for cause, count in found.items():
        if type(count) is not int:
            raise BufferFormatError(f"lost_tokens: {cause} is {count!r}, must be int")
    return found


def _header(segment: Segment, known: Shared) -> dict[str, Any]:
    """A segment's fields without those that all have in common, and how long its own part is."""
    fields = {name: v for name, v in segment_fields(segment).items() if name not in _SHARED_FIELDS}
    fields["calls"] = fields["calls"][known.calls :]
    return {**fields, "tokens": len(segment) - known.tokens, "shared": list(known)}


def _segments(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> Iterator[Segment]:
    common = {name: text_field(metadata, name) for name in _SHARED_FIELDS}
    parts = SegmentParts(tensors)
    made: list[Segment] = []
    for header in json_field(metadata, "segments", list):
        if not isinstance(header, dict):
            raise BufferFormatError(f"segments: {header!r:.64} is no segment's header")
        parent, known = _known(header, made)
        columns = parts.next(len(made), _size(header.get("tokens")), parent, known)
        calls = header.get("calls")
        if isinstance(calls, list) and parent is not None:
            calls = [*parent.calls[: known.calls], *calls]
        made.append(build_segment(columns, {**header, **common, "calls": calls}))
    parts.finish()
    yield from made


def _known(header: Mapping[str, Any], made: list[Segment]) -> tuple[Segment | None, Shared]:
    """The earlier segment that this one begins as, and for how long. Raises BufferFormatError."""
    shared = header.get("shared")
    if not isinstance(shared, list) or len(shared) != len(Shared._fields):
        raise BufferFormatError(f"shared is {shared!r:.64}, must be a list of {len(Shared._fields)}")
    known = Shared(*map(_size, shared))
    if not known.tokens:
        return None, Shared()
    parent = header.get("parent")
    if type(parent) is not int or not 0 <= parent < len(made):
        raise BufferFormatError(f"parent is {parent!r:.64}, must be an earlier segment's index")
    return made[parent], known


def _size(value: object) -> int:
    if type(value) is not int or value < 0:
        raise BufferFormatError(f"tokens/shared is {value!r:.64}, must be an int of at least 0")
    return value


def _segments_1(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> Iterator[Segment]:
    """Of the first schema: tensor ``<segment index>.<column>``, each header as on the wire."""
    headers = json_field(metadata, "segments", list)
    grouped: list[dict[str, NDArray[Any]]] = [{} for _ in headers]
    for full_name, array in tensors.items():
        index, _, name = full_name.partition(".")
        if not index.isdecimal() or int(index) >= len(headers):
            raise BufferFormatError(f"tensor {full_name!r} belongs to none of {len(headers)} segments")
        grouped[int(index)][name] = array
    if not all(isinstance(h, dict) and all(isinstance(v, str) for v in h.values()) for h in headers):
        raise BufferFormatError("segments: each must map strings to strings")
    for columns, header in zip(grouped, headers, strict=True):
        yield build_segment(columns, read_fields(header))


def _signed(data: bytes) -> bytes:
    check = f"{zlib.crc32(data):08x}".encode()
    return b"".join((data[:_CHECK_AT], check, data[_CHECK_AT + len(check) :]))


def _check_signature(view: memoryview) -> bool:
    """Whether the buffer has a checksum. Raises BufferFormatError where it has one and is another's."""
    if view[8:_CHECK_AT] != _CHECK_START:
        return False
    end = _CHECK_AT + len(_NO_CHECK)
    check = zlib.crc32(view[end:], zlib.crc32(_NO_CHECK, zlib.crc32(view[:_CHECK_AT])))
    if view[_CHECK_AT:end] != f"{check:08x}".encode():
        raise BufferFormatError("the bytes do not match their checksum: they are damaged, or cut off")
    return True
