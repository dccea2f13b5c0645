"""What is known of a rollout as it goes, and the result that it becomes."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from dressage_paddock.agent import Scene
from dressage_paddock.artifacts import Artifacts
from dressage_paddock.errors import RolloutStateError
from dressage_paddock.failure import Ending, Stage, classify
from dressage_paddock.hooks import StageResults
from dressage_paddock.lease import Released, SessionRequest
from dressage_paddock.result import RolloutResult

T = TypeVar("T")


@dataclass(slots=True)
class Course:
    """The state of one rollout; ``scene`` is there once set-up has succeeded."""

    request: SessionRequest
    session_id: str = ""
    scene: Scene | None = None
    ending: Ending | None = None
    reward: float | None = None
    artifacts: Artifacts = field(default_factory=Artifacts)
    stages: StageResults = field(default_factory=StageResults)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def turns(self) -> int:
        """Model replies or agent turns so far."""
        return self.scene.turns if self.scene else 0

    @property
    def ended(self) -> Ending:
        """How it has ended so far. Raises :class:`RolloutStateError` while nothing has."""
        if self.ending is None:
            raise RolloutStateError("the agent has not run yet: await r.run() first")
        return self.ending

    async def attempt(self, stage: Stage, work: Awaitable[T]) -> T | None:
        """``work``'s result; None where it failed, and then its failure, as ``stage``'s, is the ending."""
        try:
            with self.timed(stage):
                return await work
        except Exception as error:  # noqa: BLE001 - every failure is classified, none is dropped
            self.ending = classify(error, stage)
            return None

    @contextmanager
    def timed(self, stage: Stage) -> Iterator[None]:
        """Count the seconds of ``stage``."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[str(stage)] = time.monotonic() - began

    def result(self, released: Released) -> RolloutResult:
        """What is handed out."""
        ending, scene = self.ended, self.scene
        return RolloutResult(
            instance_id=self.request.instance_id,
            group_id=self.request.group_id or "",
            rollout_id=self.request.rollout_id,
            session_id=self.session_id,
            failure_class=ending.failure_class,
            reward=self.reward,
            turns=self.turns,
            transcript=tuple(scene.transcript) if scene else (),
            agent_output=scene.output if scene else "",
            artifacts=self.artifacts.files,
            missing_artifacts=self.artifacts.missing,
            cut_artifacts=self.artifacts.cut,
            finalize=released.finalize,
            ending=ending,
            seconds=dict(self.seconds),
            stages=self.stages,
        )
