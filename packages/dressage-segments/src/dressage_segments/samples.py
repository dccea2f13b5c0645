"""From trajectories to training samples: expansion, and advantages by rollout for every segment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dressage_segments.advantages import Estimator
from dressage_segments.errors import GroupError, ProvenanceError
from dressage_segments.policy import loss_policy
from dressage_segments.rollouts import Rollout, rollout_of, unique_rollouts
from dressage_segments.trajectory import Segment, Trajectory
from dressage_segments.versions import VersionRule, stale_rollouts
from dressage_segments.vocabulary import BranchKind, FailureClass, LossCause


@dataclass(frozen=True, slots=True)
class Sample:
    """One row to train on: a segment's columns over T tokens and its rollout's advantage.

    ``token_ids`` int32 [T], ``loss_mask`` uint8 [T], ``logprobs`` float32 [T] (behaviour, natural log; 0
    where not sampled), ``versions`` int32 [T] (-1 where not sampled).
    """

    session_id: str
    instance_id: str
    group_id: str
    rollout_id: str
    segment_index: int
    anchor: bool
    kind: BranchKind
    token_ids: NDArray[np.int32]
    loss_mask: NDArray[np.uint8]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    advantage: float
    reward: float | None
    failure_class: FailureClass

    @property
    def trained_tokens(self) -> int:
        """How many tokens have loss mask 1."""
        return int(np.count_nonzero(self.loss_mask))


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples in trajectory and segment order, and the account of the trajectories' sampled tokens (P2)."""

    samples: tuple[Sample, ...]
    rollouts: Mapping[str, Rollout]
    advantages: Mapping[str, float]
    """By rollout id."""
    sampled_tokens: int
    trained_tokens: int
    lost_tokens: Mapping[str, int]


def expand(
    trajectories: Sequence[Trajectory], estimator: Estimator, *, version_rule: VersionRule | None = None
) -> Batch:
    """Samples of all segments, each with the advantage of its rollout.

    The reward belongs to the rollout (its anchor segment); every segment of it gets the one advantage, so
    that cutting a trajectory changes nothing (P4). Rollouts that the version rule forbids are stale: not in
    the group statistics, mask 0, their tokens counted as ``version_rule``. Raises the GroupErrors (also for
    an estimator that gives no finite number), and ProvenanceError, also for a session that comes twice (P2).
    """
    _check_once(trajectories)
    stale = stale_rollouts(trajectories, version_rule) if version_rule else frozenset()
    rows = [rollout_of(t, FailureClass.STALE if t.rollout_id in stale else None) for t in trajectories]
    rollouts = unique_rollouts(rows)
    order = list(rollouts)
    values = estimator([rollouts[name] for name in order])
    if not np.isfinite(values).all():
        raise GroupError(f"advantages: the estimator gave {values[~np.isfinite(values)][0]}: mend it")
    advantages = dict(zip(order, values.tolist(), strict=True))
    samples: list[Sample] = []
    lost: dict[str, int] = {}
    for trajectory, rollout in zip(trajectories, rows, strict=True):
        for cause, count in trajectory.lost_tokens.items():
            lost[cause] = lost.get(cause, 0) + count
        dropped = _dropped_as(rollout, rollout.rollout_id in stale)
        if dropped is not None and trajectory.trained_tokens:
            lost[dropped.value] = lost.get(dropped.value, 0) + trajectory.trained_tokens
        for segment in trajectory.segments:
            samples.append(_sample(segment, rollout, advantages[rollout.rollout_id], dropped is not None))
    return Batch(
        samples=tuple(samples),
        rollouts=rollouts,
        advantages=advantages,
        sampled_tokens=sum(t.sampled_tokens for t in trajectories),
        trained_tokens=sum(sample.trained_tokens for sample in samples),
        lost_tokens=lost,
    )


def _check_once(trajectories: Sequence[Trajectory]) -> None:
    seen: set[str] = set()
    for trajectory in trajectories:
        if trajectory.session_id in seen:
            raise ProvenanceError(
                f"session_id: {trajectory.session_id!r} comes twice in one batch: "
                "its tokens would train twice: ack what was read, or drop the copy"
            )
        seen.add(trajectory.session_id)


def _dropped_as(rollout: Rollout, stale: bool) -> LossCause | None:
    """Why none of the rollout's tokens are trained, whatever its segments' masks say; None if they are."""
    if stale:
        return LossCause.VERSION_RULE
    return None if rollout.counts else loss_policy(rollout.failure_class).lost_as


def _sample(segment: Segment, rollout: Rollout, advantage: float, dropped: bool) -> Sample:
    return Sample(
        session_id=segment.session_id,
        instance_id=segment.instance_id,
        group_id=segment.group_id,
        rollout_id=segment.rollout_id,
        segment_index=segment.segment_index,
        anchor=segment.anchor,
        kind=segment.kind,
        token_ids=segment.token_ids,
        loss_mask=np.zeros_like(segment.loss_mask) if dropped else segment.loss_mask,
        logprobs=segment.logprobs,
        versions=segment.version,
        advantage=advantage,
        reward=rollout.reward,
        failure_class=rollout.failure_class,
    )
