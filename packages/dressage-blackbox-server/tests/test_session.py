"""The state machine: one execution per turn id, whatever its callers do."""

from __future__ import annotations

import asyncio

import pytest
from dressage_blackbox_server import (
    ExecResult,
    ExecutorError,
    LaunchError,
    RequestError,
    SessionClosedError,
    SessionState,
    TurnActiveError,
    TurnMismatchError,
    TurnOutcome,
    TurnState,
    UnknownTurnError,
)


async def test_a_turn_runs_the_program_and_commits_what_it_printed(open_session, executor):
    turn = await open_session().turn("t1", "do it")
    assert (turn.state, turn.outcome, turn.exit_code) == (TurnState.COMMITTED, TurnOutcome.OK, 0)
    assert (turn.output, turn.index, turn.began) == ("done", 0, True)
    assert executor.runs[0].argv == ("agent", "--fast")
    assert executor.runs[0].stdin == b"do it"


async def test_the_same_turn_id_again_gives_the_recorded_result_without_a_second_run(open_session, executor):
    session = open_session()
    first = await session.turn("t1", "do it")
    assert await session.turn("t1", "do it") == first
    assert len(executor.runs) == 1


async def test_the_same_turn_id_joins_while_it_runs(open_session, executor):
    executor.gate = asyncio.Event()
    session = open_session()
    waiters = [asyncio.create_task(session.turn("t1", "do it")) for _ in range(5)]
    await executor.started.wait()
    assert session.state is SessionState.BUSY
    executor.gate.set()
    assert len({turn.model_dump_json() for turn in await asyncio.gather(*waiters)}) == 1
    assert len(executor.runs) == 1


async def test_a_waiter_that_goes_away_does_not_end_the_turn(open_session, executor):
    executor.gate = asyncio.Event()
    session = open_session()
    waiter = asyncio.create_task(session.turn("t1", "do it"))
    await executor.started.wait()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    executor.gate.set()
    assert (await session.wait("t1")).state is TurnState.COMMITTED
    assert executor.cancelled == 0


async def test_a_second_active_turn_is_refused_and_leaves_the_first_alone(open_session, executor):
    executor.gate = asyncio.Event()
    session = open_session()
    session.submit("t1", "one")
    with pytest.raises(TurnActiveError, match="t1"):
        session.submit("t2", "two")
    executor.gate.set()
    assert (await session.wait("t1")).state is TurnState.COMMITTED
    assert (await session.turn("t2", "two")).index == 1


async def test_a_turn_id_with_another_prompt_is_refused(open_session):
    session = open_session()
    await session.turn("t1", "one")
    with pytest.raises(TurnMismatchError, match="t1"):
        session.submit("t1", "two")


async def test_cancel_ends_a_running_turn_and_the_session_goes_on(open_session, executor):
    executor.gate = asyncio.Event()
    session = open_session()
    session.submit("t1", "one")
    await executor.started.wait()
    turn = await session.cancel("t1")
    assert (turn.state, turn.outcome, turn.began) == (TurnState.CANCELLED, TurnOutcome.CANCELLED, True)
    assert executor.cancelled == 1
    executor.gate.set()
    assert (await session.turn("t2", "two")).state is TurnState.COMMITTED


async def test_cancel_before_the_turn_took_a_step_ends_it_unrun(open_session, executor):
    session = open_session()
    session.submit("t1", "one")
    assert (await session.cancel("t1")).state is TurnState.CANCELLED
    assert executor.runs == []
    assert session.state is SessionState.READY


async def test_cancel_of_a_committed_turn_changes_nothing(open_session):
    session = open_session()
    done = await session.turn("t1", "one")
    assert await session.cancel("t1") == done


async def test_a_closed_session_takes_no_turn_but_still_answers_for_old_ones(open_session):
    session = open_session()
    done = await session.turn("t1", "one")
    await session.close()
    await session.close()
    assert session.state is SessionState.CLOSED
    assert session.submit("t1", "one") == done
    with pytest.raises(SessionClosedError):
        session.submit("t2", "two")


@pytest.mark.parametrize(
    ("result", "state", "outcome", "exit_code"),
    [
        (ExecResult(0, b"", b"", False), TurnState.COMMITTED, TurnOutcome.OK, 0),
        (ExecResult(9, b"", b"", False), TurnState.FAILED, TurnOutcome.AGENT_FAILED, 9),
        (ExecResult(137, b"", b"", False), TurnState.FAILED, TurnOutcome.AGENT_FAILED, 137),
        (ExecResult(127, b"", b"", False), TurnState.FAILED, TurnOutcome.LAUNCH_FAILED, 127),
        (ExecResult(126, b"", b"", False), TurnState.FAILED, TurnOutcome.LAUNCH_FAILED, 126),
        (ExecResult(0, b"", b"", True), TurnState.FAILED, TurnOutcome.TIMEOUT, None),
        (LaunchError("no program"), TurnState.FAILED, TurnOutcome.LAUNCH_FAILED, None),
        (ExecutorError("sandbox died"), TurnState.FAILED, TurnOutcome.INFRASTRUCTURE, None),
        (ZeroDivisionError("a bug"), TurnState.FAILED, TurnOutcome.INFRASTRUCTURE, None),
    ],
)
async def test_every_end_of_a_program_has_its_own_outcome(
    open_session, executor, result, state, outcome, exit_code
):
    executor.result = result
    session = open_session()
    turn = await session.turn("t1", "one")
    assert (turn.state, turn.outcome, turn.exit_code) == (state, outcome, exit_code)
    if isinstance(result, Exception):
        assert str(result) in turn.detail
    assert session.state is SessionState.READY


@pytest.mark.parametrize("prompt", ["", "lone \ud800 surrogate"])
async def test_a_prompt_that_cannot_be_given_is_refused_before_it_is_accepted(open_session, executor, prompt):
    session = open_session()
    with pytest.raises(RequestError, match="prompt"):
        session.submit("t1", prompt)
    with pytest.raises(UnknownTurnError):
        session.get("t1")


async def test_a_queued_turn_waits_for_a_slot_and_can_be_cancelled_there(open_session, executor):
    slots = asyncio.Semaphore(1)
    async with slots:
        session = open_session(slots=slots)
        session.submit("t1", "one")
        assert (await session.wait("t1", 0.01)).state is TurnState.QUEUED
        assert (await session.cancel("t1")).state is TurnState.CANCELLED
        assert session.get("t1").began is False
    assert executor.runs == []
    assert (await session.turn("t2", "two")).state is TurnState.COMMITTED


async def test_an_executor_that_was_cancelled_by_itself_is_infrastructure_and_no_cancelled_turn(
    open_session, executor
):
    executor.result = asyncio.CancelledError()
    session = open_session()
    turn = await session.turn("t1", "go")
    assert (turn.state, turn.outcome) == (TurnState.FAILED, TurnOutcome.INFRASTRUCTURE)
    executor.result = ExecResult(0, b"done", b"", False)
    assert (await session.turn("t2", "go")).outcome is TurnOutcome.OK
