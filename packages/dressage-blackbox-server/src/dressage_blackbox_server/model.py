"""The words of a session: its configuration, its turns, and how a turn ended."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$"
Identifier = Annotated[str, Field(pattern=ID_PATTERN)]


class TurnState(StrEnum):
    """Where a turn is. The last four are final."""

    QUEUED = "queued"
    """Accepted; waits for a free slot of the server."""
    INFLIGHT = "inflight"
    """The agent's program runs."""
    COMMITTED = "committed"
    """The program ended as it should; the result is recorded."""
    FAILED = "failed"
    """It ended otherwise; ``outcome`` says how."""
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"
    """A restart of the server cut it: it may have run in part, or whole. It is never run again."""

    @property
    def final(self) -> bool:
        """Whether nothing will change any more."""
        return self not in (TurnState.QUEUED, TurnState.INFLIGHT)


class TurnOutcome(StrEnum):
    """What a final turn means."""

    OK = "ok"
    AGENT_FAILED = "agent_failed"
    """The program ran and ended with a code that means failure."""
    TIMEOUT = "timeout"
    OVERFLOW = "overflow"
    """The program ended because the model's context was full."""
    LAUNCH_FAILED = "launch_failed"
    """The program could not be started. Infrastructure."""
    INFRASTRUCTURE = "infrastructure"
    """The executor (the sandbox) failed while the program ran."""
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


class SessionState(StrEnum):
    """Where a session is."""

    READY = "ready"
    BUSY = "busy"
    LOST = "lost"
    """A turn was cut by a restart; no further turn is taken."""
    CLOSED = "closed"


class Frozen(BaseModel):
    """Base of the configuration and result types: immutable, and unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SessionConfig(Frozen):
    """One agent's session: which agent, which model address, where.

    ``openai_url`` ends in ``/v1``; ``anthropic_url`` does not (default: ``openai_url`` without it). Both are
    as seen from where the program runs. ``args`` are the adapter's extra arguments; for ``command`` they are
    the program's whole argv. No secret belongs in here: it is written to the journal.
    """

    agent: Identifier
    openai_url: str = Field(pattern=r"^https?://[^\s\"'\\]+$")
    anthropic_url: str = Field(default="", pattern=r"^(https?://[^\s\"'\\]+)?$")
    model: str = Field(default="policy", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:/-]*$")
    args: tuple[str, ...] = ()
    workdir: str = "/workspace"
    home: str = "/tmp/agent"
    env: Mapping[str, str] = Field(default_factory=dict)
    session_uuid: str = Field(default_factory=lambda: str(uuid.uuid4()))
    """What an agent program knows the conversation by; drawn at random where it is not given."""
    turn_timeout_s: float = Field(default=600.0, gt=0)
    output_bytes: int = Field(default=1 << 20, gt=0)
    """Per stream of a turn: head and tail are kept."""
    context_tokens: int = Field(default=131072, gt=0)
    """The model's window, for agents that must be told."""
    output_tokens: int = Field(default=8192, gt=0)
    """The model's output cap, for agents that must be told."""

    @field_validator("workdir", "home")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if not value.startswith("/") or not re.fullmatch(r"[^\s\x00\"'\\]+", value):
            raise ValueError(f"{value!r} is not a plain absolute path: give one like /workspace")
        return value

    @property
    def anthropic_base(self) -> str:
        """``anthropic_url``, or what follows from ``openai_url``."""
        return self.anthropic_url or self.openai_url.rstrip("/").removesuffix("/v1")


class TurnRecord(Frozen):
    """A turn as it stands. Output fields are filled once it is final."""

    turn_id: str
    index: int
    """Position in the session, from 0."""
    prompt_digest: str
    state: TurnState
    began: bool = False
    """Whether its program may have been started."""
    outcome: TurnOutcome | None = None
    exit_code: int | None = None
    """The program's own code; None where it never ended by itself."""
    output: str = ""
    """The agent's answer, as its adapter reads it from what the program printed."""
    stdout: str = ""
    stderr: str = ""
    thread_id: str = ""
    """The agent's own name of the conversation, where the adapter finds one; the next turn resumes it."""
    duration_s: float = 0.0
    detail: str = ""
