"""Staleness: the trainer's version minus the version that sampled a token, from one monotonic counter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dressage_segments.errors import InvalidFieldError, ProvenanceError
from dressage_segments.trajectory import Trajectory
from dressage_segments.turn import UNKNOWN_VERSION


@dataclass(frozen=True, slots=True)
class VersionRule:
    """Rollouts with a trained token sampled more than ``max_staleness`` versions ago are not trained.

    The rule is over the whole rollout: a trajectory of which only the fresh half trained would learn from
    actions whose causes it does not see.
    """

    trainer_version: int
    max_staleness: int

    def __post_init__(self) -> None:
        if self.trainer_version < 0 or self.max_staleness < 0:
            raise InvalidFieldError("trainer_version/max_staleness", "must not be negative")


def oldest_version(trajectory: Trajectory) -> int | None:
    """The oldest version of a trained token, UNKNOWN_VERSION if any is unknown, None if none is trained."""
    oldest = [
        int(segment.version[segment.loss_mask == 1].min())
        for segment in trajectory.segments
        if segment.trained_tokens
    ]
    return min(oldest, default=None)


def stale_rollouts(trajectories: Iterable[Trajectory], rule: VersionRule) -> frozenset[str]:
    """Rollout ids that ``rule`` forbids; an unknown version is infinitely stale.

    Raises ProvenanceError for a token newer than the trainer: the counter is not one counter.
    """
    stale = set()
    for trajectory in trajectories:
        oldest = oldest_version(trajectory)
        if oldest is None:
            continue
        newest = max(int(np.max(s.version)) for s in trajectory.segments if len(s))
        if newest > rule.trainer_version:
            raise ProvenanceError(
                f"version: session {trajectory.session_id!r} has tokens of version {newest}, the trainer is "
                f"at {rule.trainer_version}: both must read one monotonic counter"
            )
        if oldest == UNKNOWN_VERSION or rule.trainer_version - oldest > rule.max_staleness:
            stale.add(trajectory.rollout_id)
    return frozenset(stale)
