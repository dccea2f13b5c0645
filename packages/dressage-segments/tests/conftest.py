import dataclasses

import numpy as np
import pytest
from dressage_segments import BranchKind, FailureClass, Final, final_to_record, finalize
from dressage_segments.synthetic import SyntheticSession, random_session


@pytest.fixture
def finished():
    """A session, its whole log and its trajectory: ``finished(session, failure_class, outcome, ...)``."""

    def finish(session, failure_class=FailureClass.COMPLETED, reward=1.0, train_helpers=False):
        outcome = {} if reward is None else {"reward": reward}
        final = Final(1, failure_class, outcome, train_helpers)
        return finalize(session.tree, final), [*session.log, final_to_record(final)]

    return finish


@pytest.fixture
def random_trajectory(finished):
    """``random_trajectory(seed, turns)`` → session, trajectory, log."""

    def build(seed, turns=12, **options):
        session = random_session(np.random.default_rng(seed), turns, f"s{seed}")
        return (session, *finished(session, **options))

    return build


@pytest.fixture
def episode():
    """A session as agents make them: tool turns, a resumed call, a retry, a side branch and a helper call."""
    session = SyntheticSession("ep")
    first = session.turn([1, 2, 3], [10, 11, 12], keys=["sys", "u1"])
    second = session.turn([4, 5], [13, 14], parent=first, keys=["t1"], cuts=[1], versions=[1, 2])
    session.turn([4, 5], [15], parent=first, keys=["t1"])
    session.turn([6], [16, 17], parent=second, keys=["t2"])
    session.turn([7], [18], parent=second, keys=["other"])
    session.turn([8, 9], [19], keys=["title"], kind=BranchKind.HELPER)
    return session


@pytest.fixture
def changed():
    """``changed(segment, column, at, value)``: the segment with one entry replaced."""

    def change(segment, column, at, value):
        array = getattr(segment, column).copy()
        array[at] = value
        return dataclasses.replace(segment, **{column: array})

    return change
