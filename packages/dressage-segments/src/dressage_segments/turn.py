"""One committed turn: what an engine was given, what it sampled, and where the turn hangs in the tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dressage_segments.errors import InvalidFieldError
from dressage_segments.validation import (
    check_column,
    check_experts,
    check_floor,
    check_range,
    usable_logprobs,
)
from dressage_segments.vocabulary import BranchKind, LossCause, Origin

ROOT = -1
"""The ``parent`` of a turn that starts a branch from nothing."""

UNKNOWN_VERSION = -1
"""A weight version that neither the engine nor the dispatch could name. Never read as "current"."""


FINISH_REASONS = ("stop", "length", "abort")

_GIVEN = bytes(origin for origin in Origin if origin is not Origin.SAMPLED)
"""Every origin that a token of a turn's delta can have."""


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """Whose session it is. ``rollout_id`` is shared by all segments of one rollout, ``group_id`` by the
    rollouts that are compared with each other."""

    session_id: str
    instance_id: str = ""
    group_id: str = ""
    rollout_id: str = ""


@dataclass(frozen=True, slots=True)
class EngineCall:
    """One request to an engine whose output the turn keeps. A turn has several after a pause and resume.

    ``prompt_digest`` is ``ids_digest`` of exactly the ids that were sent, so that a segment can be checked
    against it without trusting the tree that built the segment (promise P1).
    """

    call_id: str
    """The ``rid`` that the engine saw: unique, of fixed length."""
    prompt_tokens: int
    prompt_digest: str
    output_tokens: int
    """How many ids of this call the turn keeps."""
    finish_reason: str
    """``stop``, ``length`` or ``abort``, as the engine said it."""
    engine: str = ""
    matched: int | str | None = None
    """The stop id or string that the engine named."""
    untrainable: str = ""
    """Empty, or the :class:`LossCause` for which this call's tokens get mask 0 (promise P3)."""
    dropped_tokens: int = 0
    """How many more ids were sampled past a stop string; they are in no context, and counted as lost."""

    def __post_init__(self) -> None:
        if not self.call_id:
            raise InvalidFieldError("call_id", "is empty", "give the rid that the engine saw")
        if min(self.prompt_tokens, self.output_tokens, self.dropped_tokens) < 0:
            raise InvalidFieldError("prompt_tokens/output_tokens/dropped_tokens", "must not be negative")
        if self.finish_reason not in FINISH_REASONS:
            raise InvalidFieldError(
                "finish_reason", f"is {self.finish_reason!r}, not one of {FINISH_REASONS}"
            )
        if self.untrainable and self.untrainable not in set(LossCause):
            raise InvalidFieldError("untrainable", f"is {self.untrainable!r}, not a LossCause")


@dataclass(frozen=True, slots=True)
class Turn:
    """One node of a trajectory tree: the tokens and messages that it ADDED to its parent's walk.

    Arrays: ``delta_ids`` int32 [D] and ``delta_origin`` uint8 [D] are what was put after the parent's last
    token before sampling; ``output_ids`` int32 [N], ``logprobs`` float32 [N] (natural log, under the
    sampling distribution; NaN where the engine gave none) and ``versions`` int32 [N] are what was sampled,
    call after call in the order of ``calls``.
    """

    session_id: str
    index: int
    """Position in the session's commit order, from 0."""
    parent: int
    """Index of the turn that this one extends, or :data:`ROOT`."""
    kind: BranchKind
    cut_reason: str
    """Empty when it simply extends its parent; else why a branch starts here."""
    delta_ids: NDArray[np.int32]
    delta_origin: NDArray[np.uint8]
    output_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    calls: tuple[EngineCall, ...]
    finish_reason: str
    """``stop``, ``length`` or ``abort`` of the whole reply."""
    tools_hash: str
    input_keys: tuple[str, ...]
    """Canonical key (hex) of each message that this turn's request added to its parent's walk."""
    reply_key: str
    """Canonical key (hex) of the assistant message that was returned."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What the proxy needs to resume (wire ids of tool calls, reasoning state, …). JSON."""
    experts: NDArray[np.uint8] | NDArray[np.uint16] | None = None
    """Routed experts [R, layers, topk] of the walk's positions from ``experts_start`` on: what this turn adds
    to its parent's. The last sampled token was never routed, the next turn has its row."""
    experts_start: int = 0

    def __post_init__(self) -> None:
        check_column("delta_ids", self.delta_ids, np.int32)
        check_column("delta_origin", self.delta_origin, np.uint8, len(self.delta_ids))
        check_column("output_ids", self.output_ids, np.int32)
        check_column("logprobs", self.logprobs, np.float32, len(self.output_ids))
        check_column("versions", self.versions, np.int32, len(self.output_ids))
        if self.experts is not None:
            check_experts(self.experts)
        kept = sum(call.output_tokens for call in self.calls)
        if kept != len(self.output_ids):
            raise InvalidFieldError(
                "calls", f"account for {kept} output tokens, output_ids has {len(self.output_ids)}"
            )
        if self.finish_reason not in FINISH_REASONS:
            raise InvalidFieldError(
                "finish_reason", f"is {self.finish_reason!r}, not one of {FINISH_REASONS}"
            )
        if not -1 <= self.parent < self.index:
            raise InvalidFieldError(
                "parent", f"is {self.parent}, must be ROOT (-1) or a turn before index {self.index}"
            )

    @property
    def sampled_tokens(self) -> int:
        """What its calls sampled: ``output_ids`` and what was dropped past a stop string."""
        return len(self.output_ids) + sum(call.dropped_tokens for call in self.calls)

    def validate(self) -> None:
        """Check the values too, O(tokens added). Raises InvalidFieldError naming the column."""
        check_floor("delta_ids", self.delta_ids, 0)
        check_floor("output_ids", self.output_ids, 0)
        check_floor("versions", self.versions, UNKNOWN_VERSION)
        if self.delta_origin.tobytes().translate(None, _GIVEN):
            check_range("delta_origin", self.delta_origin, 0, max(Origin))
            raise InvalidFieldError("delta_origin", "says sampled: only output_ids were sampled")
        if self.experts_start < 0:
            raise InvalidFieldError("experts_start", f"is {self.experts_start}, must be ≥ 0")

    def call_losses(self) -> tuple[LossCause | None, ...]:
        """For each call, why none of its tokens may be trained, or None (promise P3).

        What the recorder declared, else ``missing_logprobs`` where one is NaN, else ``misaligned`` where one
        is infinite or above 0: such a number is not the log of a probability.
        """
        causes: list[LossCause | None] = []
        at = 0
        for call in self.calls:
            logprobs = self.logprobs[at : at + call.output_tokens]
            at += call.output_tokens
            if call.untrainable:
                causes.append(LossCause(call.untrainable))
            elif usable_logprobs(logprobs).all():
                causes.append(None)
            elif np.isnan(logprobs).any():
                causes.append(LossCause.MISSING_LOGPROBS)
            else:
                causes.append(LossCause.MISALIGNED)
        return tuple(causes)
