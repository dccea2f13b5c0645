"""Where rollouts are asked for."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from dressage_sandbox.protocol import Feature, SandboxProvider

from dressage_paddock.agent import Agent
from dressage_paddock.errors import InfrastructureError, TaskError
from dressage_paddock.events import OnEvent, RolloutEvent, guarded, ignore_event
from dressage_paddock.gateway import ModelGateway
from dressage_paddock.hooks import GradePlace, Grader, Hooks
from dressage_paddock.lease import Lease, LeaseBook, SessionRequest
from dressage_paddock.result import RolloutResult
from dressage_paddock.rollout import Rollout, RolloutPlan
from dressage_paddock.task import Task


@dataclass(frozen=True, slots=True)
class PaddockConfig:
    """Settings of a paddock. ``owner`` names who holds the sandboxes, so that orphans can be found."""

    cleanup_s: float = 30.0
    """How long ending a sandbox, and then a session, may hold up a rollout; it goes on behind after that."""
    owner: str = ""
    """Default: ``dressage-paddock:<pid>``."""
    session_limits: Mapping[str, Any] | None = None
    """Limits that every recording session is opened with."""

    def __post_init__(self) -> None:
        if not self.cleanup_s > 0:
            raise TaskError(f"config.cleanup_s is {self.cleanup_s}: give a number above 0")


class Paddock:
    """Runs an agent over tasks: a provider says where, an agent says who, a gateway records the model."""

    def __init__(
        self,
        provider: SandboxProvider,
        gateway: ModelGateway,
        agent: Agent,
        *,
        config: PaddockConfig | None = None,
        hooks: Hooks | None = None,
        on_event: OnEvent = ignore_event,
    ) -> None:
        self._provider = provider
        self._gateway = gateway
        self._agent = agent
        self._config = config or PaddockConfig()
        self._hooks = hooks or Hooks()
        self._on_event = guarded(on_event)
        self._book = LeaseBook()

    @property
    def live_leases(self) -> int:
        """Rollouts not ended, and clean-ups that still go on behind."""
        return self._book.live

    def rollout(
        self,
        task: Task,
        *,
        group_id: str | None = None,
        rollout_id: str | None = None,
        sampling: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        hooks: Hooks | None = None,
    ) -> Rollout:
        """An ``async with`` block around one rollout of ``task``.

        ``sampling`` goes to the recording session (temperature, top_p, max_tokens, …). ``hooks`` take the
        place of the paddock's.
        """
        chosen = hooks or self._hooks
        if chosen.grade_in is GradePlace.QUIET and Feature.QUIET not in self._provider.features:
            told = type(self._provider).__name__
            raise TaskError(f"hooks.grade_in: {told} cannot end what was left running; use GradePlace.FRESH")
        request = SessionRequest(
            instance_id=task.instance_id,
            group_id=group_id,
            rollout_id=rollout_id or uuid.uuid4().hex,
            sampling=sampling,
            limits=self._config.session_limits,
            labels=labels,
        )
        owner = self._config.owner or f"dressage-paddock:{os.getpid()}"
        lease = Lease(self._provider, self._gateway, cleanup_s=self._config.cleanup_s, book=self._book)
        plan = RolloutPlan(task, request, owner, chosen)
        return Rollout(plan, self._agent, lease, self._on_event)

    async def run(
        self,
        task: Task,
        grade: Grader | None = None,
        *,
        group_id: str | None = None,
        rollout_id: str | None = None,
        sampling: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        hooks: Hooks | None = None,
    ) -> RolloutResult:
        """One whole rollout: set up, act, grade (where there is a grader, here or in the hooks), end.

        Failures are in the result, never raised.
        """
        chosen = hooks or self._hooks
        async with self.rollout(
            task, group_id=group_id, rollout_id=rollout_id, sampling=sampling, labels=labels, hooks=chosen
        ) as r:
            await r.run()
            if grade is not None or chosen.grade is not None:
                await r.grade(grade)
        return r.result

    def report(self, name: str, task: Task, rollout_id: str, **data: str | int | float) -> None:
        """Tell the listener a fact about a rollout."""
        self._on_event(RolloutEvent(name, task.instance_id, rollout_id, data))

    async def aclose(self) -> None:
        """Wait, up to ``cleanup_s``, for clean-ups that go on behind. Provider and gateway stay the caller's.

        Raises :class:`InfrastructureError` where some are still not done.
        """
        if not await self._book.drained(self._config.cleanup_s):
            raise InfrastructureError(f"{self._book.live} leases could not be ended in time")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
