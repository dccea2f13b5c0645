"""The turn log's records: what they hold.

A session's log is ``open``, then ``turn`` and ``mark`` records in commit order, then ``final`` or
``deleted``. Whoever reads it can rebuild the tree (:func:`dressage_segments.replay.tree_from_records`) and
check every exported segment against it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from dressage_segments.errors import BufferFormatError
from dressage_segments.protocols import LogRecord
from dressage_segments.turn import EngineCall, SessionInfo, Turn
from dressage_segments.vocabulary import BranchKind, FailureClass, Mark

_TURN_ARRAYS = ("delta_ids", "delta_origin", "output_ids", "logprobs", "versions")
_TURN_TYPES: Mapping[str, tuple[type, ...]] = {
    "session_id": (str,),
    "index": (int,),
    "parent": (int,),
    "kind": (str,),
    "cut_reason": (str,),
    "calls": (list,),
    "finish_reason": (str,),
    "tools_hash": (str,),
    "input_keys": (list,),
    "reply_key": (str,),
    "sampling": (dict,),
    "extra": (dict,),
}
_CALL_TYPES: Mapping[str, tuple[type, ...]] = {
    "call_id": (str,),
    "prompt_tokens": (int,),
    "prompt_digest": (str,),
    "output_tokens": (int,),
    "finish_reason": (str,),
    "engine": (str,),
    "matched": (int, str, type(None)),
    "untrainable": (str,),
    "dropped_tokens": (int,),
}


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
        "calls": list(map(_call_to_json, turn.calls)),
        "finish_reason": turn.finish_reason,
        "tools_hash": turn.tools_hash,
        "input_keys": list(turn.input_keys),
        "reply_key": turn.reply_key,
        "sampling": dict(turn.sampling),
        "extra": dict(turn.extra),
    }
    if mark is not None:
        meta["mark"] = mark.value
    arrays: dict[str, NDArray[Any]] = {
        "delta_ids": turn.delta_ids,
        "delta_origin": turn.delta_origin,
        "output_ids": turn.output_ids,
        "logprobs": turn.logprobs,
        "versions": turn.versions,
    }
    if turn.experts is not None:
        arrays["experts"] = turn.experts
        meta["experts_start"] = turn.experts_start
    return LogRecord("turn", meta, arrays)


def _call_to_json(call: EngineCall) -> dict[str, Any]:
    """By hand: ``dataclasses.asdict`` copies each value deeply, on every turn's path."""
    return {
        "call_id": call.call_id,
        "prompt_tokens": call.prompt_tokens,
        "prompt_digest": call.prompt_digest,
        "output_tokens": call.output_tokens,
        "finish_reason": call.finish_reason,
        "engine": call.engine,
        "matched": call.matched,
        "untrainable": call.untrainable,
        "dropped_tokens": call.dropped_tokens,
    }


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
    _check_types("turn", meta, _TURN_TYPES)
    missing = [name for name in _TURN_ARRAYS if name not in record.arrays]
    if missing:
        raise BufferFormatError(f"turn record lacks {', '.join(missing)}")
    columns: dict[str, Any] = {name: record.arrays[name] for name in _TURN_ARRAYS}
    if "experts" in record.arrays:
        _check_types("turn", meta, {"experts_start": (int,)})
        columns |= {"experts": record.arrays["experts"], "experts_start": meta["experts_start"]}
    try:
        kind = BranchKind(meta["kind"])
    except ValueError as error:
        raise BufferFormatError(f"turn record: {error}") from error
    if not all(isinstance(key, str) for key in meta["input_keys"]):
        raise BufferFormatError("turn record: input_keys must be strings")
    plain: dict[str, Any] = {
        name: meta[name] for name in _TURN_TYPES if name not in ("kind", "calls", "input_keys")
    }
    return Turn(
        kind=kind,
        calls=tuple(map(_call_from_json, meta["calls"])),
        input_keys=tuple(meta["input_keys"]),
        **plain,
        **columns,
    )


def _call_from_json(call: object) -> EngineCall:
    if not isinstance(call, dict):
        raise BufferFormatError(f"turn record: a call is {call!r:.64}, must be an object")
    _check_types(
        "call of a turn", call, {name: _CALL_TYPES[name] for name in _CALL_TYPES.keys() & call.keys()}
    )
    try:
        return EngineCall(**call)
    except TypeError as error:
        raise BufferFormatError(f"turn record: a call is incomplete: {error}") from error


def _check_types(what: str, meta: Mapping[str, Any], types: Mapping[str, tuple[type, ...]]) -> None:
    """Raise BufferFormatError for a field that is missing or of another type than JSON gives it."""
    for name, allowed in types.items():
        if name not in meta:
            raise BufferFormatError(f"{what} record lacks {name}")
        if type(meta[name]) not in allowed:
            names = " or ".join(kind.__name__ for kind in allowed)
            raise BufferFormatError(f"{what} record: {name} is {meta[name]!r:.64}, must be {names}")


def mark_to_record(index: int, mark: Mark) -> LogRecord:
    """A later fact about turn ``index``."""
    return LogRecord("mark", {"turn": index, "mark": mark.value})


def mark_from_record(record: LogRecord) -> tuple[int, Mark]:
    """Turn index and mark of a ``mark`` record. Raises BufferFormatError."""
    _expect(record, "mark")
    _check_types("mark", record.meta, {"turn": (int,), "mark": (str,)})
    try:
        return record.meta["turn"], Mark(record.meta["mark"])
    except ValueError as error:
        raise BufferFormatError(f"mark record: {error}") from error


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
    _check_types("final", meta, {"generation": (int,), "failure_class": (str,), "outcome": (dict,)})
    try:
        failure_class = FailureClass(meta["failure_class"])
    except ValueError as error:
        raise BufferFormatError(f"final record: {error}") from error
    return Final(meta["generation"], failure_class, meta["outcome"], meta.get("train_helpers") is True)


def _expect(record: LogRecord, kind: str) -> None:
    if record.kind != kind:
        raise BufferFormatError(f"expected a {kind!r} record, got {record.kind!r}")
