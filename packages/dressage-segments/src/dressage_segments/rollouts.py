"""The unit that is rewarded and compared: one rollout, however many rows its trajectory was cut into."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dressage_segments.errors import (
    GroupError,
    InvalidFieldError,
    MissingGroupError,
    MissingRewardError,
    RewardConflictError,
)
from dressage_segments.policy import loss_policy
from dressage_segments.trajectory import Trajectory
from dressage_segments.vocabulary import FailureClass

MAX_REWARD = 1e100
"""Rewards beyond this are a grader's mistake, and their squares overflow a float."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One rollout's identity, reward and end. Rows (segments) of one rollout carry equal ones."""

    rollout_id: str
    group_id: str
    reward: float | None
    """None where nothing graded it; never read as 0."""
    failure_class: FailureClass = FailureClass.COMPLETED

    def __post_init__(self) -> None:
        if not self.rollout_id:
            raise InvalidFieldError("rollout_id", "is empty", "give each rollout an id of its own")

    @property
    def counts(self) -> bool:
        """Whether it is part of its group's statistics and gets a gradient (its class's loss policy)."""
        return loss_policy(self.failure_class, graded=self.reward is not None).counts_in_group


def rollout_of(trajectory: Trajectory, failure_class: FailureClass | None = None) -> Rollout:
    """The trajectory's rollout; its reward is ``outcome["reward"]``.

    ``failure_class`` overrides the recorded one (a version rule makes a rollout stale later). Raises
    InvalidFieldError for a reward that is not a number, or too large an integer for one.
    """
    reward = trajectory.outcome.get("reward")
    where = f"of session {trajectory.session_id!r}"
    if reward is not None and not isinstance(reward, int | float):
        raise InvalidFieldError("outcome.reward", f"{where} is {reward!r:.64}", "give a number")
    try:
        value = None if reward is None else float(reward)
    except OverflowError as error:
        raise InvalidFieldError("outcome.reward", f"{where} is beyond a float", "scale it") from error
    return Rollout(
        trajectory.rollout_id, trajectory.group_id, value, failure_class or trajectory.failure_class
    )


def group_rewards(rows: Sequence[Rollout]) -> dict[str, dict[str, float]]:
    """Group id → rollout id → reward, each rollout once, over those that count.

    Raises MissingGroupError, MissingRewardError (counts, but has no finite reward), RewardConflictError
    (rows of one rollout disagree), and GroupError for a reward whose square would be infinite.
    """
    groups: dict[str, dict[str, float]] = {}
    for rollout in unique_rollouts(rows).values():
        members = groups.setdefault(rollout.group_id, {})
        if not rollout.counts:
            continue
        if rollout.reward is None or not math.isfinite(rollout.reward):
            raise MissingRewardError(
                f"reward: rollout {rollout.rollout_id!r} ({rollout.failure_class}) has {rollout.reward}: "
                "grade it, or give it the failure class that says why it was not graded"
            )
        if abs(rollout.reward) > MAX_REWARD:
            raise GroupError(
                f"reward: rollout {rollout.rollout_id!r} has {rollout.reward}, above {MAX_REWARD}: "
                "its group's deviation would be infinite: scale the rewards"
            )
        members[rollout.rollout_id] = rollout.reward
    return groups


def unique_rollouts(rows: Iterable[Rollout]) -> Mapping[str, Rollout]:
    """Rollout id → rollout. Raises MissingGroupError, and RewardConflictError where rows disagree."""
    seen: dict[str, Rollout] = {}
    for row in rows:
        if not row.group_id:
            raise MissingGroupError(
                f"group_id: rollout {row.rollout_id!r} has none: give the id of its prompt"
            )
        first = seen.setdefault(row.rollout_id, row)
        if first != row and not _same_but_for_nan(first, row):
            raise RewardConflictError(
                f"rollout {row.rollout_id!r} came as {first} and as {row}: one rollout has one group, "
                "one reward and one class"
            )
    return seen


def _same_but_for_nan(one: Rollout, other: Rollout) -> bool:
    """NaN is no other reward than NaN: whether it may be one is not asked here."""
    rewards = (one.reward, other.reward)
    both = all(reward is not None and math.isnan(reward) for reward in rewards)
    return both and replace(one, reward=None) == replace(other, reward=None)
