"""The stages of a rollout that a task family fills in, with what each may see and what it may give back.

Order: set-up, ``prepare``, ``before_agent``, the agent, the artifacts, ``after_agent``, ``grade``. Whatever
runs before the agent has ended is handed the public part of the task alone, so that no secret is within
reach of a line that writes into the agent's sandbox.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from numbers import Real
from types import UnionType

from dressage_sandbox.protocol import Sandbox, SandboxSpec

from dressage_paddock.artifacts import Artifacts
from dressage_paddock.errors import TaskError
from dressage_paddock.failure import Ending, FailureClass, Stage
from dressage_paddock.messages import ChatMessage
from dressage_paddock.task import PublicTask, Task, check_path

Note = str | int | float | bool
"""A fact that a hook wants kept with the result."""


def _check_map(name: str, given: object, kinds: type | UnionType) -> None:
    """Refuse what is no mapping from text to these kinds, where a hook makes it: far from there it would be
    somebody else's failure."""
    if not isinstance(given, Mapping):
        raise TaskError(f"{name} is {type(given).__name__}: give a mapping")
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, kinds):
            told = f"{type(key).__name__} to {type(value).__name__}"
            raise TaskError(
                f"{name}[{key!r}] is from {told}: give text to {getattr(kinds, '__name__', kinds)}"
            )


def _check_verdict(given: object) -> None:
    if given is not None and not isinstance(given, Verdict):
        raise TaskError(f"verdict is {type(given).__name__}: give Verdict(...) or None")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A hook's own judgement of how the rollout ended; it replaces the class that stood so far."""

    failure_class: FailureClass
    code: str
    detail: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.failure_class, FailureClass):
            raise TaskError(f"verdict.failure_class is {self.failure_class!r}: give a FailureClass")

    def ending(self, stage: Stage) -> Ending:
        """As an ending of ``stage``. An infrastructure verdict is worth another attempt."""
        retryable = self.failure_class is FailureClass.INFRASTRUCTURE
        return Ending(self.failure_class, self.code, self.detail, stage, retryable)


@dataclass(frozen=True, slots=True)
class StageView:
    """What ``prepare`` and ``before_agent`` see."""

    task: PublicTask
    sandbox: Sandbox


@dataclass(frozen=True, slots=True)
class Prepared:
    """What ``prepare`` tells: the place is ready."""

    notes: Mapping[str, Note] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_map("notes", self.notes, Note)


@dataclass(frozen=True, slots=True)
class Opening:
    """What ``before_agent`` tells. ``messages`` replace the task's, where there are any."""

    messages: tuple[ChatMessage, ...] = ()
    notes: Mapping[str, Note] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.messages, tuple) or not all(isinstance(m, ChatMessage) for m in self.messages):
            raise TaskError("messages: give a tuple of ChatMessage")
        _check_map("notes", self.notes, Note)


@dataclass(frozen=True, slots=True)
class AfterView:
    """What ``after_agent`` sees: the sandbox as the agent left it, and what was read back of it."""

    task: PublicTask
    sandbox: Sandbox
    transcript: tuple[ChatMessage, ...]
    agent_output: str
    ending: Ending
    artifacts: Artifacts


@dataclass(frozen=True, slots=True)
class Inspection:
    """What ``after_agent`` tells. ``artifacts`` are kept beside those that the task names."""

    verdict: Verdict | None = None
    artifacts: Mapping[str, bytes] = field(default_factory=dict)
    notes: Mapping[str, Note] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_verdict(self.verdict)
        _check_map("artifacts", self.artifacts, bytes)
        for path in self.artifacts:
            check_path("artifacts", path)
        _check_map("notes", self.notes, Note)


@dataclass(frozen=True, slots=True)
class GradeView:
    """What a grader sees: the task with its grader-only part, the transcript, and a sandbox.

    For a whitebox rollout ``model_text`` and ``final_text`` are the model's own words and nothing else. For
    a blackbox one both are None (only the recorder knows what the model wrote); ``agent_output`` is what the
    program printed, which may hold tool output. ``sandbox`` is the agent's as it was left, or a fresh one
    that holds the task's files and the artifacts that are whole.
    """

    task: Task
    transcript: tuple[ChatMessage, ...]
    model_text: str | None
    final_text: str | None
    agent_output: str
    ending: Ending
    sandbox: Sandbox
    artifacts: Artifacts = field(default_factory=Artifacts)


@dataclass(frozen=True, slots=True)
class Grade:
    """A reward with its parts. A verdict says that the number is not the whole story (cheating, say)."""

    reward: float
    parts: Mapping[str, float] = field(default_factory=dict)
    verdict: Verdict | None = None
    notes: Mapping[str, Note] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_verdict(self.verdict)
        _check_map("parts", self.parts, int | float)
        _check_map("notes", self.notes, Note)

    @property
    def finite(self) -> bool:
        """Whether the reward is a number that can be trained on."""
        given: object = self.reward
        try:
            # Real: numpy's float32 is one, and no float.
            return isinstance(given, Real) and math.isfinite(given)
        except OverflowError:
            return False


Prepare = Callable[[StageView], Awaitable[Prepared | None]]
BeforeAgent = Callable[[StageView], Awaitable[Opening | None]]
AfterAgent = Callable[[AfterView], Awaitable[Inspection | None]]
Grader = Callable[[GradeView], Awaitable[float | Grade]]
"""Gives the reward, a finite number. An exception or a time-out is a failure of the grader, never a 0."""


class GradePlace(StrEnum):
    """Where the grader works."""

    SAME = "same"
    """In the agent's sandbox: what the agent left running is still there (a server that is to be tested,
    say), and can meddle with what the grader runs."""
    QUIET = "quiet"
    """In the agent's sandbox, after every process in it was ended. Not every provider can
    (``Feature.QUIET``)."""
    FRESH = "fresh"
    """In a sandbox of its own, made after the agent's has ended: nothing that the agent ran can see or touch
    what the grader brings."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a task family does around the agent. Each is optional; one that raises ends the rollout as an
    infrastructure failure of its stage."""

    prepare: Prepare | None = None
    """Makes the place ready (dependencies, a checkout), once the task's files are written."""
    before_agent: BeforeAgent | None = None
    """The last look before the agent acts; may word the agent's messages."""
    after_agent: AfterAgent | None = None
    """The first look after it ended, unless the infrastructure failed; may give a verdict."""
    grade: Grader | None = None
    """The grader, where none is given to ``run`` or ``grade``."""
    grade_in: GradePlace = GradePlace.SAME
    grade_spec: SandboxSpec | None = None
    """The fresh sandbox; None: as the task's, without a relay."""

    def __post_init__(self) -> None:
        if self.grade_spec is not None and self.grade_in is not GradePlace.FRESH:
            raise TaskError("hooks.grade_spec is for grade_in=GradePlace.FRESH: set that, or leave it None")


@dataclass(frozen=True, slots=True)
class StageResults:
    """What the hooks gave; None where a hook was not there, gave nothing or was not reached."""

    prepared: Prepared | None = None
    opening: Opening | None = None
    inspection: Inspection | None = None
    grade: Grade | None = None
