"""The closed vocabularies of every package: origins, branch kinds, failure classes, causes of loss."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class Origin(IntEnum):
    """Where one token of a segment came from (column ``origin``, uint8)."""

    PROMPT = 0
    """Rendered by the template for the first call of a branch."""
    SAMPLED = 1
    """Emitted by an engine."""
    BRIDGE = 2
    """Template frame added after a sampled turn: turn closing, role headers, generation prompt."""
    ENVIRONMENT = 3
    """Content of later messages: tool results, user turns."""


class BranchKind(StrEnum):
    """What a branch of a session's tree is for."""

    MAIN = "main"
    SUBAGENT = "subagent"
    COMPACTION = "compaction"
    HELPER = "helper"


class FailureClass(StrEnum):
    """How a rollout ended. Every rollout ends in exactly one of these (promise P8)."""

    COMPLETED = "completed"
    TRUNCATED = "truncated"
    POLICY_FAILURE = "policy_failure"
    INFRASTRUCTURE = "infrastructure"
    TIMEOUT = "timeout"
    OVERFLOW = "overflow"
    ABORTED = "aborted"
    STALE = "stale"
    SUSPECTED_CHEATING = "suspected_cheating"


class LossCause(StrEnum):
    """Why a sampled token is not trained (promise P2). The keys of ``lost_tokens``."""

    RETRY = "retry"
    """A sibling sample of the same prompt superseded it."""
    UNDELIVERED = "undelivered"
    """The client was gone before the reply was released."""
    ABANDONED_BRANCH = "abandoned_branch"
    HELPER_CALL = "helper_call"
    MISSING_LOGPROBS = "missing_logprobs"
    PAST_STOP = "past_stop"
    """Sampled after the stop string that ended the reply: no turn keeps it."""
    MISALIGNED = "misaligned"
    """ids, logprobs and the completion count of a call disagree (promise P3)."""
    MISSING_EXPERTS = "missing_experts"
    """The engine did not say which experts it routed the tokens to, although it was asked."""
    VERSION_RULE = "version_rule"
    LENGTH_CAP = "length_cap"
    INFRASTRUCTURE_FAILURE = "infrastructure_failure"
    TIMEOUT = "timeout"
    """The wall clock ended the rollout and nothing graded what it left."""
    ABORTED = "aborted"
    STALE = "stale"
    SUSPECTED_CHEATING = "suspected_cheating"
    DELETED = "deleted"
    """The session was dropped through the control plane."""


class Mark(StrEnum):
    """A later fact about a committed turn (``mark`` records of the turn log)."""

    DELIVERED = "delivered"
    UNDELIVERED = "undelivered"
    """The client was gone before the whole reply was released."""
    SUPERSEDED = "superseded"
    """The recorder knows that another turn took its place: it and what hangs on it are not trained."""
