"""What comes out of a rollout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dressage_paddock.failure import Ending, FailureClass
from dressage_paddock.hooks import StageResults
from dressage_paddock.messages import ChatMessage, final_text, model_text


@dataclass(frozen=True, slots=True)
class FinalizeInfo:
    """The recorder's account of a finalised session. ``lost_tokens`` is by cause."""

    segments: int
    trained_tokens: int
    lost_tokens: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """How one rollout ended. ``reward`` is None wherever no grader gave a number that may count."""

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
    stages: StageResults = field(default_factory=StageResults)
    """What the hooks gave."""

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
