"""What each failure class means for learning (promise P8)."""

from __future__ import annotations

from dataclasses import dataclass

from dressage_segments.vocabulary import FailureClass, LossCause


@dataclass(frozen=True, slots=True)
class LossPolicy:
    """The consequences of one failure class."""

    counts_in_group: bool
    """Its reward is part of its group's mean and standard deviation."""
    trains: bool
    """Its sampled tokens may have loss mask 1."""
    retry: bool
    """The task should be rolled out afresh (up to the caller's limit)."""
    lost_as: LossCause | None
    """The cause under which its otherwise trainable tokens are counted when it does not train."""


_TRAINED = LossPolicy(counts_in_group=True, trains=True, retry=False, lost_as=None)


def _dropped(cause: LossCause, *, retry: bool) -> LossPolicy:
    return LossPolicy(counts_in_group=False, trains=False, retry=retry, lost_as=cause)


_POLICIES = {
    FailureClass.COMPLETED: _TRAINED,
    FailureClass.TRUNCATED: _TRAINED,
    FailureClass.POLICY_FAILURE: _TRAINED,
    FailureClass.OVERFLOW: _TRAINED,
    FailureClass.INFRASTRUCTURE: _dropped(LossCause.INFRASTRUCTURE_FAILURE, retry=True),
    FailureClass.TIMEOUT: _dropped(LossCause.TIMEOUT, retry=True),
    FailureClass.ABORTED: _dropped(LossCause.ABORTED, retry=False),
    FailureClass.STALE: _dropped(LossCause.STALE, retry=True),
    FailureClass.SUSPECTED_CHEATING: _dropped(LossCause.SUSPECTED_CHEATING, retry=False),
}


def loss_policy(failure_class: FailureClass, *, graded: bool = False) -> LossPolicy:
    """The policy of ``failure_class``.

    What the policy itself did (completed, truncated, failed, filled its context) counts and trains. What
    happened to it does neither, and is never a reward of 0. A timeout is in between: it trains if, and only
    if, a grader judged the state that it left (``graded``).
    """
    if failure_class is FailureClass.TIMEOUT and graded:
        return _TRAINED
    return _POLICIES[failure_class]
