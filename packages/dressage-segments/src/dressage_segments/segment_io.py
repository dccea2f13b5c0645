"""Segments and trajectories as safetensors buffers (proxy-api, "A segment's safetensors buffer")."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

from numpy.typing import NDArray

from dressage_segments.errors import BufferFormatError, InvalidFieldError
from dressage_segments.safetensors_io import Buffer, pack, unpack
from dressage_segments.trajectory import COLUMNS, SCHEMA, Segment, Trajectory
from dressage_segments.vocabulary import BranchKind, FailureClass

TRAJECTORY_SCHEMA = "dressage.trajectory/1"

Tensors = Mapping[str, NDArray[Any]]
E = TypeVar("E", bound=Enum)

_TEXT_FIELDS = (
    "session_id", "instance_id", "group_id", "rollout_id", "kind", "cut_reason", "tools_hash",
    "finish_reason", "failure_class",
)  # fmt: skip
_JSON_FIELDS: Mapping[str, type] = {
    "segment_index": int,
    "parent": int,
    "branch_offset": int,
    "anchor": bool,
    "sampling": dict,
    "calls": list,
}
_OPTIONAL = ("experts", "experts_rows")


def segment_to_bytes(segment: Segment) -> bytes:
    """One segment as one safetensors buffer. Text fields are stored as they are, all others as JSON text."""
    metadata = {"schema": SCHEMA, **_segment_metadata(segment)}
    return pack(_segment_tensors(segment), metadata)


def segment_from_bytes(buffer: Buffer) -> Segment:
    """The segment of a buffer, its columns views into it; validated.

    Raises BufferFormatError for bytes, schemas or metadata that are not a segment's, InvalidFieldError for
    a column that breaks the contract.
    """
    tensors, metadata = unpack(buffer)
    _check_schema(metadata, SCHEMA)
    segment = _build_segment(tensors, metadata)
    segment.validate()
    return segment


def trajectory_to_bytes(trajectory: Trajectory) -> bytes:
    """A trajectory as one safetensors buffer: tensor ``<segment index>.<column>``, fields in the metadata."""
    tensors: dict[str, NDArray[Any]] = {}
    for index, segment in enumerate(trajectory.segments):
        for name, array in _segment_tensors(segment).items():
            tensors[f"{index}.{name}"] = array
    metadata = {
        "schema": TRAJECTORY_SCHEMA,
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
        "segments": to_json("segments", [_segment_metadata(s) for s in trajectory.segments]),
    }
    return pack(tensors, metadata)


def trajectory_from_bytes(buffer: Buffer) -> Trajectory:
    """The trajectory of a buffer, its columns views into it; validated.

    Raises BufferFormatError or InvalidFieldError as :func:`segment_from_bytes` does.
    """
    tensors, metadata = unpack(buffer)
    _check_schema(metadata, TRAJECTORY_SCHEMA)
    headers = _from_json(metadata, "segments", list)
    grouped: list[dict[str, NDArray[Any]]] = [{} for _ in headers]
    for full_name, array in tensors.items():
        index, _, name = full_name.partition(".")
        if not index.isdecimal() or int(index) >= len(headers):
            raise BufferFormatError(f"tensor {full_name!r} belongs to none of {len(headers)} segments")
        grouped[int(index)][name] = array
    if not all(isinstance(h, dict) and all(isinstance(v, str) for v in h.values()) for h in headers):
        raise BufferFormatError("segments: each must map strings to strings")
    trajectory = Trajectory(
        session_id=_text(metadata, "session_id"),
        instance_id=_text(metadata, "instance_id"),
        group_id=_text(metadata, "group_id"),
        rollout_id=_text(metadata, "rollout_id"),
        generation=_from_json(metadata, "generation", int),
        segments=tuple(_build_segment(t, h) for t, h in zip(grouped, headers, strict=True)),
        failure_class=_enum(FailureClass, metadata, "failure_class"),
        outcome=_from_json(metadata, "outcome", dict),
        sampled_tokens=_from_json(metadata, "sampled_tokens", int),
        trained_tokens=_from_json(metadata, "trained_tokens", int),
        lost_tokens=_from_json(metadata, "lost_tokens", dict),
    )
    trajectory.validate()
    return trajectory


def to_json(field: str, value: object) -> str:
    """Compact JSON text; raises InvalidFieldError naming ``field`` for what JSON cannot hold, as NaN."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_mapping)
    except (TypeError, ValueError) as error:
        raise InvalidFieldError(field, f"is not JSON: {error}") from error


def _mapping(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _segment_tensors(segment: Segment) -> dict[str, NDArray[Any]]:
    tensors: dict[str, NDArray[Any]] = {name: getattr(segment, name) for name in COLUMNS}
    for name in _OPTIONAL:
        if getattr(segment, name) is not None:
            tensors[name] = getattr(segment, name)
    return tensors


def _segment_metadata(segment: Segment) -> dict[str, str]:
    metadata = {name: str(getattr(segment, name)) for name in _TEXT_FIELDS}
    for name, kind in _JSON_FIELDS.items():
        metadata[name] = to_json(name, kind(getattr(segment, name)))
    return metadata


def _build_segment(tensors: Tensors, metadata: Mapping[str, str]) -> Segment:
    missing = [name for name in COLUMNS if name not in tensors]
    unknown = [name for name in tensors if name not in COLUMNS and name not in _OPTIONAL]
    if missing or unknown:
        raise BufferFormatError(f"not a segment: tensors missing {missing}, unknown {unknown}")
    values: dict[str, Any] = {name: _text(metadata, name) for name in _TEXT_FIELDS}
    values["kind"] = _enum(BranchKind, metadata, "kind")
    values["failure_class"] = _enum(FailureClass, metadata, "failure_class")
    for name, kind in _JSON_FIELDS.items():
        values[name] = _from_json(metadata, name, kind)
    if not all(isinstance(call, str) for call in values["calls"]):
        raise BufferFormatError("calls: must be a list of strings")
    values["calls"] = tuple(values["calls"])
    columns: dict[str, Any] = {name: tensors[name] for name in COLUMNS}
    columns.update((name, tensors[name]) for name in _OPTIONAL if name in tensors)
    build: Callable[..., Segment] = Segment
    return build(**values, **columns)


def _check_schema(metadata: Mapping[str, str], schema: str) -> None:
    found = metadata.get("schema")
    if found != schema:
        raise BufferFormatError(
            f"schema is {found!r}, this reader knows {schema!r}: use the writer's version"
        )


def _text(metadata: Mapping[str, str], name: str) -> str:
    if name not in metadata:
        raise BufferFormatError(f"metadata lacks {name}")
    return metadata[name]


def _from_json(metadata: Mapping[str, str], name: str, kind: type) -> Any:
    try:
        value = json.loads(_text(metadata, name))
    except ValueError as error:
        raise BufferFormatError(f"{name} is not JSON: {error}") from error
    if type(value) is not kind:
        raise BufferFormatError(f"{name} is {type(value).__name__}, must be {kind.__name__}")
    return value


def _enum(kind: type[E], metadata: Mapping[str, str], name: str) -> E:
    try:
        return kind(_text(metadata, name))
    except ValueError as error:
        raise BufferFormatError(f"{name} is {metadata[name]!r}, not a {kind.__name__}") from error
