"""The rules of reading once, apart from where the bytes are: every backend asks these."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dressage_store.errors import (
    GenerationError,
    NotFoundError,
    SessionExistsError,
    SessionFinishedError,
    SessionIdError,
)

_SESSION_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}", re.ASCII)


class State(StrEnum):
    """What became of a session."""

    PENDING = "pending"
    """Its trajectory is published and not acked."""
    ACKED = "acked"
    DROPPED = "dropped"
    """Its log was forgotten without a trajectory."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A session that is no longer only a log. ``generation`` and ``nbytes`` are 0 where it was dropped."""

    session_id: str
    state: State
    generation: int
    failure_class: str
    outcome: Mapping[str, Any]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes that a store holds, and how much of what."""

    log_bytes: int
    trajectory_bytes: int
    """Published, and acked ones that are retained."""
    sessions: int
    """Sessions that have a log which was not forgotten."""
    pending: int

    @property
    def total_bytes(self) -> int:
        """What counts against the quota."""
        return self.log_bytes + self.trajectory_bytes


def is_session_id(session_id: object) -> bool:
    """Whether it is 1–128 of ``A-Za-z0-9._-`` and does not start with a dot."""
    return isinstance(session_id, str) and _SESSION_ID.fullmatch(session_id) is not None


def check_session_id(session_id: str) -> None:
    """Raise SessionIdError unless :func:`is_session_id`."""
    if not is_session_id(session_id):
        raise SessionIdError(
            f"session_id: {session_id!r} must be 1-128 of A-Z a-z 0-9 . _ - and not start with a dot"
        )


def check_append(session_id: str, kind: str, has_log: bool, entry: Entry | None) -> None:
    """May a record of ``kind`` be appended? The first is ``open``; an id is opened once and ended once.

    Raises SessionFinishedError, SessionExistsError or NotFoundError.
    """
    if entry is not None and (entry.state is not State.PENDING or not has_log):
        raise SessionFinishedError(f"session {session_id!r} is {entry.state}: open a new one")
    if kind == "open" and has_log:
        raise SessionExistsError(f"session {session_id!r} is open already: ids are never used twice")
    if kind != "open" and not has_log:
        raise NotFoundError(f"session {session_id!r} has no log: its first record must be 'open'")


def check_put(session_id: str, generation: int, entry: Entry | None) -> bool:
    """Is the trajectory to be written (else it is there already)?

    Raises GenerationError for a late write: older than what is published, or other than what was acked;
    SessionFinishedError for a dropped session.
    """
    if entry is None:
        return True
    if entry.state is State.DROPPED:
        raise SessionFinishedError(f"session {session_id!r} was dropped: its trajectory comes too late")
    if entry.generation == generation:
        return False
    if entry.state is State.ACKED:
        raise GenerationError(
            f"generation: session {session_id!r} was acked at {entry.generation}, {generation} is too late"
        )
    if generation < entry.generation:
        raise GenerationError(
            f"generation: {generation} of session {session_id!r} is older than {entry.generation}, published"
        )
    return True


def check_read(session_id: str, entry: Entry | None) -> Entry:
    """The entry to read. Raises NotFoundError when it is not published, or was acked or dropped."""
    if entry is None:
        raise NotFoundError(f"session {session_id!r} has no published trajectory")
    if entry.state is not State.PENDING:
        raise NotFoundError(f"session {session_id!r} is {entry.state}")
    return entry


def check_ack(session_id: str, generation: int, entry: Entry | None) -> bool:
    """Is the ack to be noted (else it was before)? Raises NotFoundError or GenerationError."""
    if entry is None or entry.state is State.DROPPED:
        raise NotFoundError(f"session {session_id!r} has no published trajectory to ack")
    if entry.generation != generation:
        raise GenerationError(
            f"generation: session {session_id!r} is at {entry.generation}, not {generation}: read it again"
        )
    return entry.state is State.PENDING
