"""What every dialect turns its requests into, and what it makes its replies from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dressage_segments import BranchKind
from dressage_tito import Message, Tool


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A model call in no dialect. ``raw`` are the messages as they came, one for each of ``decode(i)``."""

    raw: Sequence[Mapping[str, Any]]
    tools: Sequence[Tool]
    asked: Mapping[str, Any]
    """Sampling parameters that the agent names (names of :class:`dressage_proxy.config.Sampling`)."""
    kind: BranchKind | None = None
    """What the agent's headers say that the call is for."""
    thread: str = ""
    """The agent's own name of the sub-agent or thread, where a header gives one."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A committed reply: the message as every dialect shows it, and the counts."""

    message: Message
    finish_reason: str
    """``stop``, ``length``, ``abort`` or ``tool_calls``."""
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    turn: int
    warnings: tuple[str, ...] = ()
