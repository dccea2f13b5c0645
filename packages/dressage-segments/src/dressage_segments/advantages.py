"""Group advantages over rollouts, never over rows.

Each function takes rows in any order (rows of one rollout may repeat it) and returns float64 [rows] in the
same order. A rollout whose failure class does not count is in no mean or deviation and gets 0; a group with
fewer than two that count gets 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dressage_segments.rollouts import Rollout, group_rewards

Estimator = Callable[[Sequence[Rollout]], NDArray[np.float64]]

_Floats = NDArray[np.float64]
STD_EPSILON = 1e-6
"""Added to a standard deviation before dividing by it."""
_ROUNDING = 16 * np.finfo(np.float64).eps


def grpo(rows: Sequence[Rollout], *, normalise_std: bool = True) -> _Floats:
    """Reward minus its group's mean, over the group's sample standard deviation (GRPO, arXiv:2402.03300).

    Without ``normalise_std`` only the mean is taken off (Dr. GRPO, arXiv:2503.20783). Equal rewards give
    exactly 0. Raises the GroupErrors.
    """

    def advantage(rewards: _Floats) -> _Floats:
        centred = _centred(rewards)
        if normalise_std and centred.any():
            centred /= rewards.std(ddof=1) + STD_EPSILON
        return centred

    return _per_group(rows, advantage)


def rloo(rows: Sequence[Rollout]) -> _Floats:
    """Reward minus the mean of the group's other rewards (RLOO, arXiv:2402.14740). Raises the GroupErrors."""
    return _per_group(rows, lambda rewards: _centred(rewards) * (len(rewards) / (len(rewards) - 1)))


def reinforce_pp(rows: Sequence[Rollout]) -> _Floats:
    """Reward normalised by mean and deviation of all rollouts of the batch (REINFORCE++, arXiv:2501.03262).

    Raises the GroupErrors.
    """
    groups = group_rewards(rows)
    rewards = {rollout: reward for members in groups.values() for rollout, reward in members.items()}
    return _spread(rows, _normalised(rewards, baseline=True))


def reinforce_pp_baseline(rows: Sequence[Rollout]) -> _Floats:
    """Reward minus its group's mean, over the whole batch's deviation of that (REINFORCE++-baseline,
    arXiv:2501.03262). Raises the GroupErrors."""
    centred: dict[str, float] = {}
    for members in group_rewards(rows).values():
        if len(members) > 1:
            centred.update(zip(members, _centred(_array(members)).tolist(), strict=True))
    return _spread(rows, _normalised(centred, baseline=False))


def _per_group(rows: Sequence[Rollout], advantage: Callable[[_Floats], _Floats]) -> _Floats:
    by_rollout: dict[str, float] = {}
    for members in group_rewards(rows).values():
        if len(members) > 1:
            by_rollout.update(zip(members, advantage(_array(members)).tolist(), strict=True))
    return _spread(rows, by_rollout)


def _array(rewards: Mapping[str, float]) -> _Floats:
    return np.fromiter(rewards.values(), np.float64, len(rewards))


def _centred(rewards: _Floats) -> _Floats:
    """Rewards minus their mean; exactly 0 where all are equal but for rounding, the mean's or the grader's
    (0.1 + 0.2 against 0.3): a group without a difference must not look alive."""
    if np.ptp(rewards) <= _ROUNDING * np.abs(rewards).max():
        return np.zeros_like(rewards)
    centred: _Floats = rewards - rewards.mean()
    return centred


def _normalised(values: Mapping[str, float], *, baseline: bool) -> dict[str, float]:
    if len(values) < 2:
        return {}
    array = _array(values)
    centred = _centred(array) if baseline else array
    if not centred.any():
        return dict.fromkeys(values, 0.0)
    return dict(zip(values, (centred / (array.std(ddof=1) + STD_EPSILON)).tolist(), strict=True))


def _spread(rows: Sequence[Rollout], by_rollout: Mapping[str, float]) -> _Floats:
    return np.array([by_rollout.get(row.rollout_id, 0.0) for row in rows], np.float64)
