"""The one classifier: how an exception or an ending becomes a failure class (promise P8)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dressage_sandbox.errors import (
    Full,
    InvalidSpec,
    LimitNotEnforceable,
    OutOfMemory,
    ProviderUnavailable,
    SandboxError,
    Unsupported,
)

from dressage_paddock.errors import (
    ContextOverflowError,
    GatewayError,
    GatewayRefusedError,
    GraderFailedError,
    HookFailedError,
    SandboxFailedError,
    StageError,
    StageTimeoutError,
    ToolFailedError,
)


class FailureClass(StrEnum):
    """How a rollout ended; the same words as ``dressage_segments.FailureClass`` (a test holds them equal)."""

    COMPLETED = "completed"
    TRUNCATED = "truncated"
    POLICY_FAILURE = "policy_failure"
    INFRASTRUCTURE = "infrastructure"
    TIMEOUT = "timeout"
    OVERFLOW = "overflow"
    ABORTED = "aborted"
    STALE = "stale"
    SUSPECTED_CHEATING = "suspected_cheating"


class Stage(StrEnum):
    """The parts of a rollout, in order."""

    SETUP = "setup"
    PREPARE = "prepare"
    BEFORE_AGENT = "before_agent"
    AGENT = "agent"
    AFTER_AGENT = "after_agent"
    GRADE = "grade"
    END = "end"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a stage ended. ``code`` is a short word for counting, ``detail`` is for people."""

    failure_class: FailureClass
    code: str = ""
    detail: str = ""
    stage: Stage = Stage.AGENT
    retryable: bool = False
    """Whether the same task with a fresh sandbox may go better."""


COMPLETED = Ending(FailureClass.COMPLETED)

GRADABLE = frozenset(
    {
        FailureClass.COMPLETED,
        FailureClass.TRUNCATED,
        FailureClass.POLICY_FAILURE,
        FailureClass.TIMEOUT,
        FailureClass.OVERFLOW,
    }
)
"""Endings that leave a sandbox worth grading. What the reward then counts for is the loss policy's matter."""

OUT_OF_MEMORY = "out_of_memory"
"""The code of a rollout whose agent used up its sandbox's memory, so that the sandbox died of it."""

_ITS_OWN_DOING = frozenset({Stage.AGENT, Stage.AFTER_AGENT, Stage.END})
"""Stages in which what runs in the sandbox, and what fills it, is the agent's."""

_CODES: tuple[tuple[type[BaseException], str, bool], ...] = (
    (GatewayRefusedError, "gateway_refused", False),
    (GatewayError, "gateway_error", True),
    (ToolFailedError, "tool_failed", True),
    (GraderFailedError, "grader_failed", True),
    (HookFailedError, "hook_failed", True),
    (SandboxFailedError, "sandbox_failed", True),
    (InvalidSpec, "sandbox_spec", False),
    (Unsupported, "sandbox_spec", False),
    (LimitNotEnforceable, "sandbox_spec", False),
    (Full, "sandbox_full", True),
    (ProviderUnavailable, "sandbox_unavailable", False),
    (SandboxError, "sandbox_failed", True),
    (StageError, "infrastructure", True),
)


def classify(error: BaseException, stage: Stage) -> Ending:
    """The ending that an exception of ``stage`` means.

    An exception that nobody foresaw is infrastructure too: it says nothing of the policy. Cancellation is
    the caller's decision, hence aborted. A sandbox that died of the memory that its agent used up is the
    policy's failure: else that would be a way to have a bad rollout tried again.
    """
    detail = _describe(error)
    if isinstance(error, ContextOverflowError):
        return Ending(FailureClass.OVERFLOW, "context_overflow", detail, stage)
    if not isinstance(error, Exception):
        return Ending(FailureClass.ABORTED, "cancelled", detail, stage)
    if isinstance(error, OutOfMemory) and stage in _ITS_OWN_DOING:
        return Ending(FailureClass.POLICY_FAILURE, OUT_OF_MEMORY, detail, stage)
    if isinstance(error, StageTimeoutError) and stage is Stage.AGENT:
        return Ending(FailureClass.TIMEOUT, "wall_clock", detail, stage)
    if isinstance(error, StageTimeoutError):
        return Ending(FailureClass.INFRASTRUCTURE, f"{stage}_timeout", detail, stage, retryable=True)
    for kind, code, retryable in _CODES:
        if isinstance(error, kind):
            return Ending(FailureClass.INFRASTRUCTURE, code, detail, stage, retryable)
    return Ending(FailureClass.INFRASTRUCTURE, f"{stage}_error", detail, stage, retryable=True)


def _describe(error: BaseException) -> str:
    text = str(error).strip()
    name = type(error).__name__
    cause = error.__cause__
    told = f"{name}: {text}" if text else name
    if cause is None or str(cause).strip() in text:
        return told
    return f"{told} (from {_describe(cause)})"
