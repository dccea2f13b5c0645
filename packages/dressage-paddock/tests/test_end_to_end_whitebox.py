"""The whitebox loop through a real sandbox, a real proxy and a scripted engine."""

from __future__ import annotations

import asyncio
import os
import signal

import httpx
import pytest
from dressage_paddock import (
    FailureClass,
    GraderOnly,
    GradeView,
    Task,
    TextCallProtocol,
    WhiteboxPaddock,
)
from dressage_proxy.client import ControlError


def tool_call(arguments: str, name: str = "shell") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


async def exact(view: GradeView) -> float:
    return float(view.final_text == view.task.grader.values["answer"])


async def test_a_native_tool_rollout_is_recorded_and_every_trained_token_is_proven(
    recorder, bubblewrap, audited
):
    recorder.script([tool_call('{"command": "cat number.txt"}'), "1234"])
    task = Task(
        "t", prompt="What number?", files={"number.txt": b"1234\n"}, grader=GraderOnly({"answer": "1234"})
    )
    async with httpx.AsyncClient() as http:
        paddock = WhiteboxPaddock(bubblewrap, recorder.client, http)
        result = await paddock.run(task, exact, group_id="g", sampling={"temperature": 1.0})
    assert (result.failure_class, result.reward, result.turns) == (FailureClass.COMPLETED, 1.0, 2)
    assert [m.role for m in result.transcript] == ["user", "assistant", "tool", "assistant"]
    assert result.transcript[2].content == "1234"
    assert result.finalize is not None
    assert result.finalize.segments == 1
    assert result.finalize.lost_tokens == {}
    _, segments = await recorder.client.segments(result.session_id)
    assert (segments[0].group_id, segments[0].instance_id) == ("g", "t")
    report = audited(result.session_id)
    assert report.ok, report.findings
    assert report.proven_tokens == result.finalize.trained_tokens > 0
    assert bubblewrap.live() == []


async def test_text_calls_through_the_real_chain_are_proven_too(recorder, bubblewrap, audited):
    recorder.script(["<call>cat number.txt</call>", "1234"])
    task = Task(
        "t", prompt="What number?", files={"number.txt": b"1234\n"}, grader=GraderOnly({"answer": "1234"})
    )
    async with httpx.AsyncClient() as http:
        paddock = WhiteboxPaddock(bubblewrap, recorder.client, http, protocol=TextCallProtocol())
        result = await paddock.run(task, exact)
    assert (result.reward, [m.role for m in result.transcript][2]) == (1.0, "user")
    report = audited(result.session_id)
    assert report.ok, report.findings
    assert report.trained_tokens == report.sampled_tokens > 0


async def test_a_conversation_beyond_the_context_is_an_overflow_and_a_cut_reply_is_truncated(
    recorder, bubblewrap
):
    recorder.script([tool_call('{"command": "seq 9999"}'), "done"])
    async with httpx.AsyncClient() as http:
        paddock = WhiteboxPaddock(bubblewrap, recorder.client, http)
        result = await paddock.run(Task("t", prompt="count"))
        assert (result.failure_class, result.turns) == (FailureClass.OVERFLOW, 1), result.ending
        cut = await paddock.run(Task("t", prompt="count"), sampling={"max_tokens": 3})
    assert (cut.failure_class, cut.ending.code) == (FailureClass.TRUNCATED, "length"), cut.ending


async def test_p7_p8_a_sandbox_killed_in_mid_rollout_is_infrastructure_with_its_tokens_accounted(
    recorder, bubblewrap, audited
):
    recorder.script([tool_call('{"command": "sleep 60"}'), "done"])

    def kill(event) -> None:
        if event.name == "reply":
            (box,) = bubblewrap._sandboxes.values()
            os.kill(box.pid, signal.SIGKILL)

    async with httpx.AsyncClient() as http:
        paddock = WhiteboxPaddock(bubblewrap, recorder.client, http, on_event=kill)
        result = await paddock.run(Task("t", prompt="wait"), exact)
    assert (result.failure_class, result.reward) == (FailureClass.INFRASTRUCTURE, None), result.ending
    assert result.ending.code == "sandbox_failed"
    assert result.finalize is not None
    assert result.finalize.trained_tokens == 0
    assert sum(result.finalize.lost_tokens.values()) > 0
    assert audited(result.session_id).ok
    assert bubblewrap.live() == []


async def test_p7_a_cancelled_rollout_drops_its_session_at_the_real_proxy(recorder, bubblewrap):
    recorder.script([tool_call('{"command": "sleep 60"}')])
    called = asyncio.Event()
    opened: list[str] = []

    def listen(event) -> None:
        if event.name == "opened":
            opened.append(event.data["session_id"])
        if event.name == "reply":
            called.set()

    async with httpx.AsyncClient() as http:
        paddock = WhiteboxPaddock(bubblewrap, recorder.client, http, on_event=listen)
        task = asyncio.create_task(paddock.run(Task("t", prompt="wait")))
        await asyncio.wait_for(called.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (bubblewrap.live(), paddock.live_leases) == ([], 0)
    with pytest.raises(ControlError) as refused:
        await recorder.client.segments(opened[0])
    assert refused.value.status in (404, 409, 410)
