"""What the control plane reads and says, as its OpenAPI description tells it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from dressage_segments import FailureClass
from dressage_tito import ThinkingPolicy
from pydantic import BaseModel, ConfigDict, Field, Strict

from dressage_proxy.config import Limits, Sampling, Storable

_MAX_ID = 512
_MAX_VERSION = 2**31 - 1
"""Versions are kept as int32, one a token."""


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class OpenBody(_Body):
    """``POST /sessions``."""

    instance_id: str = Field(min_length=1, max_length=_MAX_ID)
    group_id: str | None = Field(default=None, max_length=_MAX_ID)
    rollout_id: str | None = Field(default=None, max_length=_MAX_ID)
    sampling: Sampling | None = None
    limits: Limits | None = None
    labels: Storable[dict[str, str] | None] = None
    thinking: ThinkingPolicy | None = None
    """Whether sampled reasoning stays in the context (``keep``, the default)."""


class FinalizeBody(_Body):
    """``POST /sessions/{id}/finalize``."""

    outcome: Storable[dict[str, Any] | None] = None
    failure_class: FailureClass | None = None
    """``completed`` where it is not given."""


class AckBody(_Body):
    """``POST /sessions/{id}/ack``."""

    generation: int = Field(ge=1, strict=True)


class PauseBody(_Body):
    """``POST /rollout/pause``."""

    session_id: str | None = None
    timeout_s: Annotated[float, Strict()] = Field(default=60.0, ge=0, le=3600)
    force: Annotated[bool, Strict()] = False
    """Preempt also sessions that have used up their switches of weight versions: they are refused after."""


class ResumeBody(_Body):
    """``POST /rollout/resume``."""

    version: int = Field(ge=0, le=_MAX_VERSION, strict=True)


class BaseUrls(BaseModel):
    """Where an agent's clients send their calls. OpenAI's ends in ``/v1``; Anthropic's does not."""

    openai: str
    anthropic: str


class Opened(BaseModel):
    """An open session."""

    session_id: str
    base_urls: BaseUrls


class SessionView(BaseModel):
    """A session as it is now."""

    session_id: str
    instance_id: str
    group_id: str
    rollout_id: str
    state: str
    """``open`` or ``finalized``."""
    steps: int
    branches: Mapping[str, int]
    """How many of each kind."""
    tokens: int
    """Sampled and committed."""
    in_flight: int
    faults: int
    """Model calls that failed for no reason of the agent's (429, 5xx) since one was last answered: an agent
    that ends now may have ended for that."""
    paused: bool
    """Its calls wait for a resume."""
    generation: int | None
    """To ack, once it is finalised."""
    expired: bool
    failure_class: str | None
    """As which it ended."""
    labels: Mapping[str, str]


class FinalizedView(BaseModel):
    """What a session left. The same however often, and as what, it is finalised: the first end stays."""

    segments: int
    trained_tokens: int
    lost_tokens: Mapping[str, int]
    """By cause."""
    sampled_tokens: int
    generation: int
    failure_class: str
    """As which it ended."""


class PausedView(BaseModel):
    """What a pause reached. ``spared`` is only there where calls were."""

    quiesced: bool
    preempted: int
    waiting: int
    spared: int = 0


class RolloutView(BaseModel):
    """The gate's state."""

    state: str
    """``running`` or ``paused``."""
    version: int | None
    in_flight: int
    waiting: int
    paused_sessions: int = 0
    """Sessions that are paused by themselves (all are where the state is ``paused``); only there where some
    are."""


class HealthView(BaseModel):
    """The process answers."""

    status: str


class ReadyView(BaseModel):
    """Whether calls can be answered, and what is in the way. Where engines are is told to who shows the
    control key; to others they are "engine 1" and so on, with no ``warnings``. ``shards`` has each shard's
    own word (null where it does not answer), where there are several."""

    ready: bool
    engines: Mapping[str, bool]
    store_writable: bool
    draining: bool
    warnings: list[str]
    shards: list[Any] | None = None


class ErrorDetail(BaseModel):
    """What was wrong, where, and what to do instead."""

    code: str
    message: str
    field: str | None = None
    fix: str | None = None


class ErrorBody(BaseModel):
    """The body of every refusal."""

    error: ErrorDetail


_REFUSALS = {
    400: "The body is no JSON.",
    401: "The control key is missing or wrong.",
    404: "No such session.",
    409: "The state does not allow it.",
    410: "The session is finished.",
    413: "The body is larger than --max-body-bytes.",
    422: "A field is missing, unknown or out of range.",
    503: "The proxy is full, being stopped, restarts in part, or its store failed; comes with Retry-After.",
}
_ANY = (401, 503)
BODY = (400, 413, 422)
"""Refusals of whatever reads a body."""
SESSION = (404, 410)
"""Refusals of whatever names a session."""


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals of a route, those that every route has among them."""
    return {
        status: {"model": ErrorBody, "description": _REFUSALS[status]}
        for status in sorted({*_ANY, *statuses})
    }


def unnamed(engines: Mapping[str, bool]) -> dict[str, bool]:
    """The engines for who shows no key: not where they are, which is not for agents to know."""
    return {f"engine {place}": engines[url] for place, url in enumerate(sorted(engines), 1)}


def merged_ready(states: Iterable[Mapping[str, Any] | None], *, draining: bool = False) -> dict[str, Any]:
    """The readiness of all shards as one: an engine is reachable where every shard reaches it. ``draining``:
    they are being stopped; those that have ended say nothing any more."""
    known = list(states)
    there = [state for state in known if state is not None]
    engines: dict[str, bool] = {}
    for state in there:
        for engine, reachable in state["engines"].items():
            engines[engine] = engines.get(engine, True) and reachable
    complete = len(there) == len(known)
    return {
        "ready": complete and not draining and all(state["ready"] for state in there),
        "engines": engines,
        "store_writable": (complete or draining) and all(state["store_writable"] for state in there),
        "draining": draining or any(state["draining"] for state in there),
        "warnings": list(dict.fromkeys(text for state in there for text in state["warnings"])),
        "shards": known,
    }
