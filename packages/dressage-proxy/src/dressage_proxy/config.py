"""The proxy's configuration: frozen, complete, and passed in. Only ``main()`` reads flags and environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    field_validator,
    model_validator,
)

from dressage_proxy.engine.choose import Choice
from dressage_proxy.engine.experts import ExpertsShape
from dressage_proxy.engine.pool import PoolOptions
from dressage_proxy.engine.urls import base_url

_V = TypeVar("_V")
_INT64 = 2**63 - 1


def _storable(value: _V) -> _V:
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("has half a surrogate pair, which is no text: send whole characters") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"cannot be kept as JSON: {error}") from error
    return value


Storable = Annotated[_V, AfterValidator(_storable)]
"""A value that the turn log can keep: finite numbers, whole characters."""


_Float = Annotated[float, Strict()]
_Int = Annotated[int, Strict()]
"""What comes over the wire is taken as it is: true is no 1, and "1" is no number."""


class ProxyConfig(BaseModel):
    """What one proxy process serves. Lengths in tokens, times in seconds."""

    # pydantic before 2.10 warns of names that begin with model_.
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    tokenizer: Path
    """A Hugging Face tokenizer folder with a chat template."""
    engines: tuple[str, ...] = ()
    """Base URLs of SGLang engines."""
    router: str | None = None
    """Base URL of a sglang-router whose workers are engines too; calls go to them directly."""
    engine_choice: Choice = Choice.STICKY
    """Which engine samples a session's next step: sticky, least-loaded or prefix-aware."""
    engine_cache_tokens: int = Field(default=0, ge=0)
    """What an engine's prefix cache holds, for ``prefix-aware``; 0: not known, taken as 16 Mi tokens."""
    router_refresh_s: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    engine_health_s: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    """Interval of health checks, made where there is more than one engine."""
    routed_experts: ExpertsShape | None = None
    """Ask engines for routed experts (R3) of this shape; segments then carry them."""
    store: Path
    """Folder of the files store."""
    control_key: str = Field(min_length=16, repr=False)
    model_name: str = Field(default="dressage", min_length=1)
    """What ``/v1/models`` lists. Requests may name any model."""
    template_kwargs: Mapping[str, Any] = Field(default_factory=dict)
    context_window: int = Field(default=32768, ge=16)
    max_output_tokens: int = Field(default=8192, ge=1)
    """Cap of one reply; a request that asks for more is given this."""
    max_body_bytes: int = Field(default=64 << 20, ge=1024)
    max_sessions: int = Field(default=100_000, ge=1)
    max_in_flight: int = Field(default=4096, ge=1)
    """Replies in the making at once; one more is refused with Retry-After."""
    idle_timeout_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """A session without a call for so long ends by itself: its trajectory is stored as a timeout."""
    max_version_switches: int | None = Field(default=None, ge=0)
    """How often a session's tokens may change their weight version; None: any number of times."""
    drain_s: float = Field(default=10.0, ge=0, allow_inf_nan=False)
    """How long replies in the making may take to end once the proxy is told to stop."""
    shard: int = Field(default=0, ge=0)
    shards: int = Field(default=1, ge=1, le=256)
    """Of how many processes this one is which: ids of its sessions say so."""
    retain: bool = False
    """Keep logs and trajectories after ack, so that a run can be audited."""
    fsync: bool = False
    engine_timeout_s: float = Field(default=3600.0, gt=0, allow_inf_nan=False)
    engine_attempts: int = Field(default=5, ge=1)
    """Tries of one engine call before any token is accepted."""
    keepalive_s: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    """Interval of comments on an idle stream."""

    @field_validator("control_key")
    @classmethod
    def _checked_key(cls, key: str) -> str:
        if not (key.isascii() and key.isprintable()) or key != key.strip():
            raise ValueError("cannot go in a header: give printable ASCII without blanks at its ends")
        return key

    @field_validator("engines")
    @classmethod
    def _checked_engines(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(base_url(url) for url in urls)

    @field_validator("router")
    @classmethod
    def _checked_router(cls, url: str | None) -> str | None:
        return None if url is None else base_url(url)

    @model_validator(mode="after")
    def _checked_source(self) -> Self:
        if not self.engines and self.router is None:
            raise ValueError("name at least one engine, or a router")
        return self

    def pool(self) -> PoolOptions:
        """What the engines' pool is told."""
        return PoolOptions(
            self.engines,
            self.router,
            self.engine_choice,
            self.engine_cache_tokens,
            self.router_refresh_s,
            self.engine_health_s,
            self.engine_timeout_s,
        )


class Sampling(BaseModel):
    """A session's sampling parameters. What is set here overrides the agent's wish (and is flagged)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: _Float | None = Field(default=None, ge=0, allow_inf_nan=False)
    top_p: _Float | None = Field(default=None, gt=0, le=1)
    top_k: _Int | None = None
    """-1 for all, else at least 1."""
    min_p: _Float | None = Field(default=None, ge=0, le=1)
    max_tokens: _Int | None = Field(default=None, ge=1)
    stop: Storable[tuple[Annotated[str, Field(min_length=1)], ...] | None] = None
    seed: _Int | None = Field(default=None, ge=-_INT64 - 1, le=_INT64)
    frequency_penalty: _Float | None = Field(default=None, ge=-2, le=2)
    presence_penalty: _Float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: _Float | None = Field(default=None, gt=0, le=2)

    @field_validator("top_k")
    @classmethod
    def _checked_top_k(cls, value: int | None) -> int | None:
        if value is not None and value < 1 and value != -1:
            raise ValueError("must be -1 (all) or at least 1")
        return value


class Limits(BaseModel):
    """A session's ceilings; each may only lower the proxy's own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    context_window: _Int | None = Field(default=None, ge=16)
    max_output_tokens: _Int | None = Field(default=None, ge=1)
    max_steps: _Int | None = Field(default=None, ge=1)
    """Committed turns."""
    max_total_tokens: _Int | None = Field(default=None, ge=1)
    """Sampled tokens over the whole session."""
    idle_timeout_s: _Float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_version_switches: _Int | None = Field(default=None, ge=0)
