"""What goes over HTTP between the server and its client."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from dressage_blackbox_server import errors
from dressage_blackbox_server.model import Frozen, Identifier, SessionConfig, SessionState, TurnRecord

MAX_WAIT_S = 60.0
"""Longest time that one request waits for a turn; a client asks again."""

MAX_BODY_BYTES = 32 << 20


class CreateSession(Frozen):
    """``POST /sessions``. With an id of the caller's choice, asking again is harmless."""

    config: SessionConfig
    session_id: Identifier | None = None


class SessionInfo(Frozen):
    """A session as it stands."""

    session_id: str
    state: SessionState
    config: SessionConfig
    turns: tuple[TurnRecord, ...]


class PostTurn(Frozen):
    """``POST /sessions/{id}/turns``: 200 with a final turn, 202 with one that still runs."""

    turn_id: Identifier
    prompt: str
    wait_s: float = Field(default=0.0, ge=0.0, le=MAX_WAIT_S)


class ErrorBody(Frozen):
    """The inside of ``{"error": …}``."""

    code: str
    message: str
    field: str | None = None
    fix: str | None = None


class ErrorReply(Frozen):
    """Every reply that is not a success."""

    error: ErrorBody


STATUS: Mapping[type[errors.BlackboxError], tuple[int, str]] = {
    errors.RequestError: (400, "bad_request"),
    errors.PromptTooLargeError: (400, "prompt_too_large"),
    errors.UnknownAgentError: (400, "unknown_agent"),
    errors.UnknownSessionError: (404, "unknown_session"),
    errors.UnknownTurnError: (404, "unknown_turn"),
    errors.TurnActiveError: (409, "turn_active"),
    errors.TurnMismatchError: (409, "turn_mismatch"),
    errors.SessionExistsError: (409, "session_exists"),
    errors.SessionClosedError: (410, "session_closed"),
    errors.SessionLostError: (409, "session_lost"),
    errors.ServerFullError: (503, "server_full"),
    errors.JournalError: (507, "journal_failed"),
}
"""The one mapping between errors and HTTP, read by both sides."""


def status_of(error: errors.BlackboxError) -> tuple[int, str]:
    """HTTP status and code of an error."""
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[kind]
    return 500, "internal"


def error_of(code: str, message: str) -> errors.BlackboxError:
    """The error that a code stands for."""
    for kind, (_, known) in STATUS.items():
        if known == code:
            return kind(message)
    return errors.ServerError(f"{code}: {message}")
