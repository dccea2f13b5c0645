"""Segments and the trajectory that they make up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dressage_segments.vocabulary import BranchKind, FailureClass

SCHEMA = "dressage.segment/1"


@dataclass(frozen=True, slots=True)
class Segment:
    """One walk of a session's tree as columns over T tokens (contract: proxy-api, "A segment's safetensors buffer").

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
