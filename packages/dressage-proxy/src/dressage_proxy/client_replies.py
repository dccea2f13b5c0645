"""What the control plane's client reads of replies, and writes of requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, Self, TypeVar

import httpx
import orjson

from dressage_proxy.errors import ProxyError

_T = TypeVar("_T")


class ControlError(ProxyError):
    """A control request that failed. ``status`` 0 and code ``unreachable``: no answer came; code ``closed``:
    it was not sent."""

    def __init__(
        self, status: int, code: str, message: str, field: str | None = None, fix: str | None = None
    ) -> None:
        super().__init__(status, code, message, field, fix)
        self.status = status
        self.code = code
        self.message = message
        self.field = field
        self.fix = fix

    def __str__(self) -> str:
        place = f" (field {self.field})" if self.field else ""
        return f"{self.status} {self.code}: {self.message}{place}" + (f"; {self.fix}" if self.fix else "")


@dataclass(frozen=True, slots=True)
class OpenSession:
    """An open recording session. ``openai_url`` ends in ``/v1``; ``anthropic_url`` does not."""

    session_id: str
    openai_url: str
    anthropic_url: str

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> Self:
        """As a reply says it."""
        urls = reply["base_urls"]
        return cls(_text(reply["session_id"]), _text(urls["openai"]), _text(urls["anthropic"]))


@dataclass(frozen=True, slots=True)
class Finalized:
    """What a session left: its segments, and every sampled token trained or lost under a cause.
    ``failure_class`` is that of the first finalize, which stays."""

    segments: int
    trained_tokens: int
    lost_tokens: Mapping[str, int]
    failure_class: str = ""

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> Self:
        """As a reply says it."""
        return cls(
            int(reply["segments"]),
            int(reply["trained_tokens"]),
            {str(cause): int(tokens) for cause, tokens in reply["lost_tokens"].items()},
            _text(reply.get("failure_class", "")),
        )


@dataclass(frozen=True, slots=True)
class Paused:
    """``quiesced`` only if nothing of the pause's scope is in flight any more. ``spared`` calls end by
    themselves: their sessions have used up their switches of weight versions."""

    quiesced: bool
    preempted: int
    waiting: int
    spared: int = 0

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> Self:
        """As a reply says it."""
        if not isinstance(reply["quiesced"], bool):
            raise TypeError("quiesced")
        return cls(
            reply["quiesced"], int(reply["preempted"]), int(reply["waiting"]), int(reply.get("spared", 0))
        )


def read(of: Callable[[Mapping[str, Any]], _T], response: httpx.Response, asked: str) -> _T:
    """A reply's object as ``of`` makes it. Raises ControlError for what this proxy would not say."""
    reply = _decoded(response)
    if not isinstance(reply, dict):
        raise ControlError(response.status_code, "bad_reply", f"{asked}: no JSON object came back")
    try:
        return of(reply)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        told = f"{asked}: {error} is missing or something else in the reply"
        raise ControlError(response.status_code, "bad_reply", told) from error


def written(body: Mapping[str, Any] | None, asked: str) -> bytes | None:
    """A request's JSON. Raises ControlError for what JSON cannot say: a NaN must not arrive as null."""
    if body is None:
        return None
    try:
        return json.dumps(body, allow_nan=False, default=_plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ControlError(
            0,
            "invalid_field",
            f"{asked}: cannot be sent as JSON: {error}",
            fix="give finite numbers, texts, lists and mappings",
        ) from error


def error_of(response: httpx.Response) -> ControlError:
    """What a reply that is no success says."""
    reply = _decoded(response)
    error = reply.get("error") if isinstance(reply, dict) else None
    if not isinstance(error, dict):
        return ControlError(response.status_code, "bad_reply", response.text[:300] or "an empty reply")
    return ControlError(
        response.status_code,
        str(error.get("code", "")),
        str(error.get("message", "")),
        error.get("field"),
        error.get("fix"),
    )


def _plain(value: object) -> object:
    """numpy's numbers and arrays, dataclasses, dates and UUIDs as JSON has them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return orjson.loads(orjson.dumps(value))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(repr(value)[:80])
    return value


def _decoded(response: httpx.Response) -> object:
    try:
        return orjson.loads(response.content)
    except orjson.JSONDecodeError:
        return None
