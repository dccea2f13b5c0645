"""Segments and the trajectory that they make up."""

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
    check_range,
    check_where,
    usable_logprobs,
)
from dressage_segments.vocabulary import BranchKind, FailureClass, LossCause, Origin

SCHEMA = "dressage.segment/1"


@dataclass(frozen=True, slots=True)
class Segment:
    """One walk of a session's tree as columns over T tokens.

    Contract: proxy-api, "A segment's safetensors buffer".

    ``token_ids`` int32 [T]; ``logprobs`` float32 [T], 0 where not sampled; ``loss_mask`` uint8 [T];
    ``origin`` uint8 [T]; ``version`` int32 [T], -1 where not sampled; ``call`` int32 [T], index into
    ``calls``, -1 where not sampled; ``offset`` int32 [T], position within that call's output, -1 where not
    sampled. Optional ``experts`` uint8|uint16 [R, layers, topk] with ``experts_rows`` int32 [R].
    """

    session_id: str
    instance_id: str
    group_id: str
    rollout_id: str
    segment_index: int
    kind: BranchKind
    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    loss_mask: NDArray[np.uint8]
    origin: NDArray[np.uint8]
    version: NDArray[np.int32]
    call: NDArray[np.int32]
    offset: NDArray[np.int32]
    calls: tuple[str, ...]
    """Engine call ids; ``call`` indexes this."""
    parent: int = -1
    """``segment_index`` of the segment that this one shares a prefix with, or -1."""
    branch_offset: int = 0
    """Tokens shared with ``parent`` (their mask is 0 here)."""
    cut_reason: str = ""
    anchor: bool = False
    tools_hash: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    finish_reason: str = ""
    failure_class: FailureClass = FailureClass.COMPLETED
    experts: NDArray[np.uint8] | NDArray[np.uint16] | None = None
    experts_rows: NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        check_column("token_ids", self.token_ids, np.int32)
        tokens = len(self.token_ids)
        for name, dtype in COLUMNS.items():
            check_column(name, getattr(self, name), dtype, tokens)
        _check_experts(self.experts, self.experts_rows)

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def sampled(self) -> NDArray[np.bool_]:
        """Where an engine sampled the token, bool [T]."""
        return np.asarray(self.origin == Origin.SAMPLED)

    @property
    def trained_tokens(self) -> int:
        """How many tokens have loss mask 1."""
        return int(np.count_nonzero(self.loss_mask))

    def validate(self) -> None:
        """Check every value against the contract, O(T). Raises InvalidFieldError naming the column."""
        check_range("token_ids", self.token_ids, 0)
        check_range("loss_mask", self.loss_mask, 0, 1)
        check_range("origin", self.origin, 0, max(Origin))
        sampled = self.sampled
        check_where("loss_mask", (self.loss_mask == 1) & ~sampled, "only a sampled token may be trained")
        for name in ("version", "call", "offset"):
            check_where(name, ~sampled & (getattr(self, name) != -1), "-1 where not sampled")
        check_where("logprobs", ~sampled & (self.logprobs != 0), "0 where not sampled")
        check_where("logprobs", ~usable_logprobs(self.logprobs), "a finite natural log, at most 0")
        check_range("version", self.version, -1)
        check_where(
            "call", sampled & ((self.call < 0) | (self.call >= len(self.calls))), "an index into calls"
        )
        check_where("offset", sampled & (self.offset < 0), "a position in the call's output")
        self._validate_fields()

    def _validate_fields(self) -> None:
        if len(set(self.calls)) != len(self.calls):
            raise InvalidFieldError("calls", "names an engine call twice")
        if self.segment_index < 0:
            raise InvalidFieldError("segment_index", f"is {self.segment_index}, must be ≥ 0")
        if not -1 <= self.parent < self.segment_index:
            raise InvalidFieldError("parent", f"is {self.parent}, must be -1 or an earlier segment's index")
        if not 0 <= self.branch_offset <= len(self) or (self.parent < 0 and self.branch_offset):
            raise InvalidFieldError(
                "branch_offset", f"is {self.branch_offset} in a segment of {len(self)} tokens"
            )
        if self.loss_mask[: self.branch_offset].any():
            raise InvalidFieldError("loss_mask", "trains a token that is shared with the parent segment")
        if self.experts_rows is not None:
            check_range("experts_rows", self.experts_rows, 0, len(self) - 1)
            if (np.diff(self.experts_rows) <= 0).any():
                raise InvalidFieldError("experts_rows", "must be in rising order, each position once")


COLUMNS: Mapping[str, type[np.generic]] = {
    "token_ids": np.int32,
    "logprobs": np.float32,
    "loss_mask": np.uint8,
    "origin": np.uint8,
    "version": np.int32,
    "call": np.int32,
    "offset": np.int32,
}
"""The per-token columns of a segment and their dtypes (proxy-api, "A segment's safetensors buffer")."""


def _check_experts(experts: object, rows: object) -> None:
    if experts is None and rows is None:
        return
    if not isinstance(experts, np.ndarray) or not isinstance(rows, np.ndarray):
        raise InvalidFieldError("experts", "and experts_rows come together or not at all")
    check_experts(experts)
    check_column("experts_rows", rows, np.int32, len(experts))


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A finalised session: its segments and the account of every sampled token (promise P2)."""

    session_id: str
    instance_id: str
    group_id: str
    rollout_id: str
    generation: int
    segments: tuple[Segment, ...]
    failure_class: FailureClass
    outcome: Mapping[str, Any]
    """What finalize was given (JSON); by convention ``reward`` is in here."""
    sampled_tokens: int
    trained_tokens: int
    lost_tokens: Mapping[str, int]
    """:class:`LossCause` value -> tokens; ``sampled == trained + sum(lost)``."""

    def __post_init__(self) -> None:
        for cause, count in self.lost_tokens.items():
            if cause not in set(LossCause):
                raise InvalidFieldError("lost_tokens", f"{cause!r} is not a LossCause")
            if count < 0:
                raise InvalidFieldError("lost_tokens", f"{cause} is {count}, must be ≥ 0")
        lost = sum(self.lost_tokens.values())
        if self.sampled_tokens != self.trained_tokens + lost:
            raise InvalidFieldError(
                "sampled_tokens",
                f"is {self.sampled_tokens}, but {self.trained_tokens} trained + {lost} lost were counted",
            )

    def validate(self) -> None:
        """Check the segments and what they share, O(tokens). Raises InvalidFieldError naming the field."""
        if not 0 <= self.generation < 2**63:
            raise InvalidFieldError("generation", f"is {self.generation}, must be in [0, 2**63)")
        for index, segment in enumerate(self.segments):
            segment.validate()
            if segment.segment_index != index:
                raise InvalidFieldError("segment_index", f"is {segment.segment_index} at position {index}")
            for name in ("session_id", "instance_id", "group_id", "rollout_id", "failure_class"):
                if getattr(segment, name) != getattr(self, name):
                    raise InvalidFieldError(name, f"of segment {index} differs from the trajectory's")
        anchors = sum(segment.anchor for segment in self.segments)
        if anchors != bool(self.segments):
            raise InvalidFieldError("anchor", f"{anchors} segments are anchors, exactly one must be")
        trained = sum(segment.trained_tokens for segment in self.segments)
        if trained != self.trained_tokens:
            raise InvalidFieldError("trained_tokens", f"is {self.trained_tokens}, the masks train {trained}")
