"""Segments as safetensors buffers (proxy-api, "A segment's safetensors buffer")."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

from numpy.typing import NDArray

from dressage_segments.errors import BufferFormatError, InvalidFieldError
from dressage_segments.safetensors_io import Buffer, pack, unpack
from dressage_segments.trajectory import COLUMNS, SCHEMA, Segment
from dressage_segments.vocabulary import BranchKind, FailureClass

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
_FIELDS: Mapping[str, type] = {**dict.fromkeys(_TEXT_FIELDS, str), **_JSON_FIELDS}
_OPTIONAL = ("experts", "experts_rows")


def segment_to_bytes(segment: Segment) -> bytes:
    """One segment as one safetensors buffer. Text fields are stored as they are, all others as JSON text."""
    metadata = {"schema": SCHEMA}
    for name, value in segment_fields(segment).items():
        metadata[name] = to_json(name, value) if name in _JSON_FIELDS else value
    tensors: dict[str, NDArray[Any]] = {name: getattr(segment, name) for name in COLUMNS}
    for name in _OPTIONAL:
        if getattr(segment, name) is not None:
            tensors[name] = getattr(segment, name)
    return pack(tensors, metadata)


def segment_from_bytes(buffer: Buffer) -> Segment:
    """The segment of a buffer, its columns views into it; validated.

    Raises BufferFormatError for bytes, schemas or metadata that are not a segment's, InvalidFieldError for
    a column that breaks the contract.
    """
    tensors, metadata = unpack(buffer)
    check_schema(metadata, SCHEMA)
    segment = build_segment(tensors, read_fields(metadata))
    segment.validate()
    return segment


def to_json(field: str, value: object) -> str:
    """Compact JSON text; raises InvalidFieldError naming ``field`` for what JSON cannot hold, as NaN."""
    try:
        text = _JSON.encode(value)
        if not text.isascii() and not _is_unicode(text):
            text = _ASCII_JSON.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidFieldError(field, f"is not JSON: {error}") from error
    return text


def _is_unicode(text: str) -> bool:
    """Whether it has no lone surrogate: JSON can spell one (an agent may send it), UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _mapping(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_mapping)
_ASCII_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_mapping)


def segment_fields(segment: Segment) -> dict[str, Any]:
    """What is no column, in types that JSON has."""
    fields: dict[str, Any] = {name: str(getattr(segment, name)) for name in _TEXT_FIELDS}
    for name, kind in _JSON_FIELDS.items():
        fields[name] = kind(getattr(segment, name))
    return fields


def read_fields(metadata: Mapping[str, str]) -> dict[str, Any]:
    """What :func:`segment_fields` gave, from a wire header's strings. Raises BufferFormatError."""
    fields: dict[str, Any] = {name: text_field(metadata, name) for name in _TEXT_FIELDS}
    for name, kind in _JSON_FIELDS.items():
        fields[name] = json_field(metadata, name, kind)
    return fields


def build_segment(tensors: Tensors, fields: Mapping[str, Any]) -> Segment:
    """The segment of these columns and fields, not validated. Raises BufferFormatError for what misses, for
    tensors that no segment has, and for fields of another type."""
    missing = [name for name in COLUMNS if name not in tensors]
    unknown = [name for name in tensors if name not in COLUMNS and name not in _OPTIONAL]
    if missing or unknown:
        raise BufferFormatError(f"not a segment: tensors missing {missing}, unknown {unknown}")
    values: dict[str, Any] = {}
    for name, kind in _FIELDS.items():
        if type(fields.get(name)) is not kind:
            raise BufferFormatError(f"{name} is {fields.get(name)!r:.64}, must be {kind.__name__}")
        values[name] = fields[name]
    values["kind"] = enum_field(BranchKind, values, "kind")
    values["failure_class"] = enum_field(FailureClass, values, "failure_class")
    if not all(isinstance(call, str) for call in values["calls"]):
        raise BufferFormatError("calls: must be a list of strings")
    values["calls"] = tuple(values["calls"])
    build: Callable[..., Segment] = Segment
    return build(**values, **tensors)


def check_schema(metadata: Mapping[str, str], schema: str) -> None:
    """Raise BufferFormatError unless the metadata names this schema."""
    found = metadata.get("schema")
    if found != schema:
        raise BufferFormatError(
            f"schema is {found!r}, this reader knows {schema!r}: use the writer's version"
        )


def text_field(metadata: Mapping[str, str], name: str) -> str:
    """The text of one metadata field. Raises BufferFormatError where it is missing."""
    if name not in metadata:
        raise BufferFormatError(f"metadata lacks {name}")
    return metadata[name]


def json_field(metadata: Mapping[str, str], name: str, kind: type) -> Any:
    """The value of one metadata field in JSON, of exactly this type. Raises BufferFormatError."""
    try:
        value = json.loads(text_field(metadata, name))
    except (ValueError, RecursionError) as error:
        raise BufferFormatError(f"{name} is not JSON: {error}") from error
    if type(value) is not kind:
        raise BufferFormatError(f"{name} is {type(value).__name__}, must be {kind.__name__}")
    return value


def enum_field(kind: type[E], metadata: Mapping[str, Any], name: str) -> E:
    """The member of an enum that one metadata field names. Raises BufferFormatError."""
    try:
        return kind(text_field(metadata, name))
    except ValueError as error:
        raise BufferFormatError(f"{name} is {metadata[name]!r}, not a {kind.__name__}") from error
