"""The failure taxonomy: the same words as segments', and one classifier."""

from __future__ import annotations

import asyncio
import inspect
import pickle

import dressage_segments
import pytest
from dressage_paddock import (
    ContextOverflowError,
    FailureClass,
    PaddockError,
    Stage,
    StageTimeoutError,
    classify,
)
from dressage_paddock import errors as module
from dressage_sandbox import SandboxGone


def test_the_failure_classes_are_those_of_segments():
    assert {c.name: c.value for c in FailureClass} == {
        c.name: c.value for c in dressage_segments.FailureClass
    }


@pytest.mark.parametrize("stage", list(Stage))
@pytest.mark.parametrize(
    "error", [ValueError("x"), TimeoutError("theirs"), SandboxGone("x"), KeyError("bug")]
)
def test_p8_what_nobody_foresaw_is_infrastructure_and_never_the_policys(error, stage):
    ending = classify(error, stage)
    assert (ending.failure_class, ending.stage, ending.retryable) == (
        FailureClass.INFRASTRUCTURE,
        stage,
        True,
    )
    assert str(error) in ending.detail


def test_our_own_clock_is_a_timeout_of_the_agent_only_in_its_own_stage():
    assert classify(StageTimeoutError("x"), Stage.AGENT).failure_class is FailureClass.TIMEOUT
    assert classify(StageTimeoutError("x"), Stage.SETUP).failure_class is FailureClass.INFRASTRUCTURE


def test_overflow_and_cancellation_have_their_own_class():
    assert classify(ContextOverflowError("x"), Stage.AGENT).failure_class is FailureClass.OVERFLOW
    assert classify(asyncio.CancelledError(), Stage.AGENT).failure_class is FailureClass.ABORTED


def test_every_error_pickles_and_is_drawn_in_the_hierarchy():
    kinds = [k for _, k in inspect.getmembers(module, inspect.isclass) if issubclass(k, PaddockError)]
    assert len(kinds) == 15
    for kind in kinds:
        again = pickle.loads(pickle.dumps(kind("told")))
        assert (type(again), str(again)) == (kind, "told")
        assert kind.__name__ in (module.__doc__ or "")
