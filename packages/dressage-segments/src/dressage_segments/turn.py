"""One committed turn: what an engine was given, what it sampled, and where the turn hangs in the tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dressage_segments.vocabulary import BranchKind

ROOT = -1
"""The ``parent`` of a turn that starts a branch from nothing."""

UNKNOWN_VERSION = -1
"""A weight version that neither the engine nor the dispatch could name. Never read as "current"."""


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
