"""The turn log's records: what they hold, and their bytes.

A session's log is ``open``, then ``turn`` and ``mark`` records in commit order, then ``final`` or
``deleted``. Whoever reads it can rebuild the tree (:func:`dressage_segments.replay.tree_from_records`) and
check every exported segment against it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from dressage_segments.errors import BufferFormatError
from dressage_segments.protocols import LogRecord
from dressage_segments.safetensors_io import Buffer, pack, unpack
from dressage_segments.segment_io import to_json
from dressage_segments.turn import EngineCall, SessionInfo, Turn
from dressage_segments.vocabulary import BranchKind, FailureClass, Mark

RECORD_SCHEMA = "dressage.record/1"

_CALL_FIELDS = tuple(field.name for field in dataclasses.fields(EngineCall))
_TURN_ARRAYS = ("delta_ids", "delta_origin", "output_ids", "logprobs", "versions")


def record_to_bytes(record: LogRecord) -> bytes:
    """One record as one safetensors buffer. Raises InvalidFieldError for meta that JSON cannot hold."""
    meta = to_json(f"meta of a {record.kind!r} record", record.meta)
    return pack(record.arrays, {"schema": RECORD_SCHEMA, "kind": record.kind, "meta": meta})


def record_from_bytes(buffer: Buffer) -> LogRecord:
    """The record of a buffer, its arrays views into it. Raises BufferFormatError."""
    arrays, metadata = unpack(buffer)
    if metadata.get("schema") != RECORD_SCHEMA:
        raise BufferFormatError(f"schema is {metadata.get('schema')!r}, must be {RECORD_SCHEMA!r}")
    try:
        return LogRecord(metadata["kind"], json.loads(metadata["meta"]), arrays)
    except (KeyError, ValueError) as error:
        raise BufferFormatError(f"not a log record: {error}") from error


def open_to_record(info: SessionInfo, extra: Mapping[str, Any] | None = None) -> LogRecord:
    """The record that opens a session. ``extra`` (JSON) is the recorder's own: limits, sampling, labels."""
    return LogRecord("open", {**dataclasses.asdict(info), "extra": dict(extra or {})})


def info_from_record(record: LogRecord) -> SessionInfo:
    """Whose session an ``open`` record opened. Raises BufferFormatError where fields are missing."""
    _expect(record, "open")
    names = [field.name for field in dataclasses.fields(SessionInfo)]
    missing = [name for name in names if not isinstance(record.meta.get(name), str)]
    if missing:
        raise BufferFormatError(f"open record lacks {', '.join(missing)}")
    return SessionInfo(**{name: record.meta[name] for name in names})


def turn_to_record(turn: Turn, mark: Mark | None = None) -> LogRecord:
    """A turn as a ``turn`` record; the arrays are the turn's own. With ``mark`` the turn and what is known of
    it from the start are one record, so that no crash can keep the one without the other."""
    meta: dict[str, Any] = {
        "session_id": turn.session_id,
        "index": turn.index,
        "parent": turn.parent,
        "kind": turn.kind.value,
        "cut_reason": turn.cut_reason,
        "calls": [_call_to_json(call) for call in turn.calls],
        "finish_reason": turn.finish_reason,
        "tools_hash": turn.tools_hash,
        "input_keys": list(turn.input_keys),
        "reply_key": turn.reply_key,
        "sampling": dict(turn.sampling),
        "extra": dict(turn.extra),
    }
    if mark is not None:
        meta["mark"] = mark.value
    arrays = {name: getattr(turn, name) for name in _TURN_ARRAYS}
    if turn.experts is not None:
        arrays["experts"] = turn.experts
        meta["experts_start"] = turn.experts_start
    return LogRecord("turn", meta, arrays)


def _call_to_json(call: EngineCall) -> dict[str, Any]:
    """By hand: ``dataclasses.asdict`` copies each value deeply, on every turn's path."""
    return {name: getattr(call, name) for name in _CALL_FIELDS}


def first_mark_from_record(record: LogRecord) -> Mark | None:
    """The mark that a ``turn`` record carries itself. Raises BufferFormatError."""
    _expect(record, "turn")
    value = record.meta.get("mark")
    try:
        return None if value is None else Mark(value)
    except ValueError as error:
        raise BufferFormatError(f"turn record: {error}") from error


def turn_from_record(record: LogRecord) -> Turn:
    """The turn of a ``turn`` record. Raises BufferFormatError, or InvalidFieldError for broken columns."""
    _expect(record, "turn")
    meta = record.meta
    missing = [name for name in _TURN_ARRAYS if name not in record.arrays]
    if missing:
        raise BufferFormatError(f"turn record lacks {', '.join(missing)}")
    arrays: dict[str, Any] = {name: record.arrays[name] for name in _TURN_ARRAYS}
    if "experts" in record.arrays:
        arrays |= {"experts": record.arrays["experts"], "experts_start": meta.get("experts_start")}
        if not isinstance(arrays["experts_start"], int):
            raise BufferFormatError("turn record has experts and no experts_start")
    try:
        return Turn(
            session_id=meta["session_id"],
            index=meta["index"],
            parent=meta["parent"],
            kind=BranchKind(meta["kind"]),
            cut_reason=meta["cut_reason"],
            calls=tuple(EngineCall(**call) for call in meta["calls"]),
            finish_reason=meta["finish_reason"],
            tools_hash=meta["tools_hash"],
            input_keys=tuple(meta["input_keys"]),
            reply_key=meta["reply_key"],
            sampling=meta["sampling"],
            extra=meta["extra"],
            **arrays,
        )
    except (KeyError, TypeError) as error:
        raise BufferFormatError(f"turn record is incomplete: {error}") from error


def mark_to_record(index: int, mark: Mark) -> LogRecord:
    """A later fact about turn ``index``."""
    return LogRecord("mark", {"turn": index, "mark": mark.value})


def mark_from_record(record: LogRecord) -> tuple[int, Mark]:
    """Turn index and mark of a ``mark`` record. Raises BufferFormatError."""
    _expect(record, "mark")
    try:
        return int(record.meta["turn"]), Mark(record.meta["mark"])
    except (KeyError, ValueError, TypeError) as error:
        raise BufferFormatError(f"mark record is incomplete: {error}") from error


@dataclasses.dataclass(frozen=True, slots=True)
class Final:
    """How a session was finalised: what :func:`~dressage_segments.export.finalize` was given."""

    generation: int
    failure_class: FailureClass
    outcome: Mapping[str, Any]
    train_helpers: bool = False


def final_to_record(final: Final) -> LogRecord:
    """The record that ends a session."""
    meta = {
        "generation": final.generation,
        "failure_class": final.failure_class.value,
        "outcome": dict(final.outcome),
        "train_helpers": final.train_helpers,
    }
    return LogRecord("final", meta)


def final_from_record(record: LogRecord) -> Final:
    """How a ``final`` record ended its session. Raises BufferFormatError."""
    _expect(record, "final")
    meta = record.meta
    try:
        return Final(
            int(meta["generation"]),
            FailureClass(meta["failure_class"]),
            meta["outcome"],
            bool(meta.get("train_helpers", False)),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise BufferFormatError(f"final record is incomplete: {error}") from error


def _expect(record: LogRecord, kind: str) -> None:
    if record.kind != kind:
        raise BufferFormatError(f"expected a {kind!r} record, got {record.kind!r}")
