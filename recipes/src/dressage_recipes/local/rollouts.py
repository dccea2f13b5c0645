"""A step's rollouts: problems worked on in sandboxes through the proxy, and read back as trajectories."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dressage_paddock import Paddock, RolloutResult, run_with_retries
from dressage_proxy.client import ControlError, ProxyClient
from dressage_segments import FailureClass, LossCause, Trajectory

from dressage_recipes.local.config import LocalConfig
from dressage_recipes.local.work import Work, group_name

_EXPECTED = frozenset({"completed", "truncated"})
"""Endings that need no explanation."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What a step's rollouts left. ``trajectories`` are of every attempt, those that failed too."""

    trajectories: tuple[Trajectory, ...]
    reward: float
    """Mean over the rollouts that count; 0 where none does."""
    counted: int
    turns: float
    """Mean model replies of a counted rollout."""
    classes: Counter[str]
    """Rollouts by failure class, attempts that were retried included."""
    shown: tuple[RolloutResult, ...] = ()
    """The rollouts of the first task, for people."""
    failures: tuple[RolloutResult, ...] = ()
    """Rollouts and attempts that ended in another way than completed or truncated."""


class Collector:
    """Runs groups of rollouts, at most ``concurrency`` at a time."""

    def __init__(self, paddock: Paddock, client: ProxyClient, config: LocalConfig) -> None:
        self._paddock = paddock
        self._client = client
        self._config = config
        self._room = asyncio.Semaphore(config.rollouts.concurrency)

    async def collect(
        self, step: int, works: Sequence[Work], on_done: Callable[[int, int], None]
    ) -> Collected:
        """``group`` rollouts of each task. ``on_done``: how many of how many have ended."""
        group = self._config.rollouts.group
        total, ended = len(works) * group, 0

        async def one(number: int, work: Work, member: int) -> tuple[RolloutResult, list[Trajectory]]:
            nonlocal ended
            async with self._room:
                result = await self._roll(step, number, work, member)
                trajectories = [
                    t for r in (*result.earlier, result) if (t := await self._read(r)) is not None
                ]
            ended += 1
            on_done(ended, total)
            return result, trajectories

        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(one(number, work, member))
                for number, work in enumerate(works)
                for member in range(group)
            ]
        return _summed([task.result() for task in running], group)

    async def acknowledge(self, trajectories: Sequence[Trajectory]) -> None:
        """Tell the proxy that these are safe: each is read exactly once."""
        async with asyncio.TaskGroup() as tasks:
            for trajectory in trajectories:
                if trajectory.generation:
                    tasks.create_task(self._client.ack(trajectory.session_id, trajectory.generation))

    async def _roll(self, step: int, number: int, work: Work, member: int) -> RolloutResult:
        config = self._config
        group_id = group_name(step, number)
        seed = ((config.seed * 100_003 + step) * 1009 + number) * 1009 + member
        return await run_with_retries(
            self._paddock,
            work.task,
            work.grade,
            attempts=config.rollouts.attempts,
            group_id=group_id,
            rollout_id=f"{group_id}-rollout{member:02d}",
            sampling={
                "temperature": config.rollouts.temperature,
                "top_p": 1.0,
                "top_k": -1,
                "max_tokens": config.tasks.max_tokens,
                "seed": seed % (1 << 31),
            },
            labels={**work.labels, "step": str(step)},
        )

    async def _read(self, result: RolloutResult) -> Trajectory | None:
        """The trajectory of a finalised session; None where none was recorded."""
        if result.finalize is None:
            return await self._drop(result) if result.session_id else None
        generation, segments = await self._client.segments(result.session_id)
        lost = dict(result.finalize.lost_tokens)
        return Trajectory(
            session_id=result.session_id,
            instance_id=result.instance_id,
            group_id=result.group_id,
            rollout_id=result.rollout_id,
            generation=generation,
            segments=tuple(segments),
            failure_class=FailureClass(result.failure_class.value),
            outcome={"reward": result.reward},
            sampled_tokens=result.finalize.trained_tokens + sum(lost.values()),
            trained_tokens=result.finalize.trained_tokens,
            lost_tokens=lost,
        )

    async def _drop(self, result: RolloutResult) -> Trajectory | None:
        """Drop a session whose end is in doubt (its finalize was not answered in time), and count it."""
        try:
            tokens = int((await self._client.get(result.session_id))["tokens"])
            await self._client.delete(result.session_id)
        except ControlError as error:
            if error.status in (404, 410):
                return None  # it was dropped already
            raise
        return Trajectory(
            session_id=result.session_id,
            instance_id=result.instance_id,
            group_id=result.group_id,
            rollout_id=result.rollout_id,
            generation=0,
            segments=(),
            failure_class=FailureClass(result.failure_class.value),
            outcome={},
            sampled_tokens=tokens,
            trained_tokens=0,
            lost_tokens={LossCause.DELETED.value: tokens},
        )


def _summed(done: Sequence[tuple[RolloutResult, list[Trajectory]]], group: int) -> Collected:
    graded = [result for result, _ in done if result.reward is not None]
    attempts = [r for result, _ in done for r in (*result.earlier, result)]
    count = max(len(graded), 1)
    return Collected(
        trajectories=tuple(t for _, trajectories in done for t in trajectories),
        reward=sum(r.reward or 0.0 for r in graded) / count,
        counted=len(graded),
        turns=sum(r.turns for r in graded) / count,
        classes=Counter(r.failure_class.value for r in attempts),
        shown=tuple(result for result, _ in done[:group]),
        failures=tuple(r for r in attempts if r.failure_class.value not in _EXPECTED),
    )
