"""What comes out of a rollout, and what its grader may look at."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from dressage_sandbox.protocol import Sandbox

from dressage_paddock.failure import Ending, FailureClass
from dressage_paddock.messages import ChatMessage, final_text, model_text
from dressage_paddock.task import Task


@dataclass(frozen=True, slots=True)
class FinalizeInfo:
    """The recorder's account of a finalised session. ``lost_tokens`` is by cause."""

    segments: int
    trained_tokens: int
    lost_tokens: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class GradeView:
    """What a grader sees: the task with its grader-only part, the transcript, and the sandbox as left.

    For a whitebox rollout ``model_text`` and ``final_text`` are the model's own words and nothing else. For
    a blackbox one both are None (only the recorder knows what the model wrote); ``agent_output`` is what the
    program printed, which may hold tool output.
    """

    task: Task
    transcript: tuple[ChatMessage, ...]
    model_text: str | None
    final_text: str | None
    agent_output: str
    ending: Ending
    sandbox: Sandbox


Grader = Callable[[GradeView], Awaitable[float]]
"""Gives the reward, a finite number. An exception or a time-out is a failure of the grader, never a 0."""


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """How one rollout ended. ``reward`` is None wherever no grader gave a number."""

    instance_id: str
    group_id: str
    rollout_id: str
    session_id: str
    """Of the recorder; "" where none was opened."""
    failure_class: FailureClass
    reward: float | None
    turns: int
    """Model replies (whitebox) or agent turns (blackbox) that ended."""
    transcript: tuple[ChatMessage, ...]
    agent_output: str
    artifacts: Mapping[str, bytes]
    missing_artifacts: tuple[str, ...]
    cut_artifacts: tuple[str, ...]
    finalize: FinalizeInfo | None
    ending: Ending
    """Code, detail and stage behind ``failure_class``."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """By stage."""
    earlier: tuple[RolloutResult, ...] = ()
    """Attempts that ended in infrastructure failures and were retried, oldest first."""

    @property
    def attempts(self) -> int:
        """How many rollouts it took, this one included."""
        return len(self.earlier) + 1

    @property
    def model_text(self) -> str:
        """The model's own output, reply after reply ("" for a blackbox rollout)."""
        return model_text(self.transcript)

    @property
    def final_text(self) -> str:
        """The model's last reply ("" for a blackbox rollout)."""
        return final_text(self.transcript)
