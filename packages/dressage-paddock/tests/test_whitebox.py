"""The whitebox loop over fakes: every way in which it ends."""

from __future__ import annotations

import httpx
import pytest
from dressage_paddock import (
    ChatMessage,
    FailureClass,
    RolloutStateError,
    Stage,
    Task,
    TaskError,
    TaskLimits,
    TextCallProtocol,
    WhiteboxConfig,
    WhiteboxPaddock,
)
from dressage_paddock.fake import call, say
from dressage_paddock.messages import assistant_from_wire
from dressage_sandbox import Full, InvalidSpec, LimitNotEnforceable, Unsupported, UserNamespacesForbidden
from dressage_sandbox.fake import FakeProvider, completed

TASK = Task("t", prompt="p", system="be good")


async def test_a_reply_without_a_call_completes_and_the_whole_conversation_is_kept(fakes):
    parts = fakes([call("shell", command="ls"), say("done")], provider=FakeProvider([completed("a.txt\n")]))
    result = await parts.paddock.run(TASK, group_id="g", rollout_id="r", sampling={"temperature": 0.7})
    assert (result.failure_class, result.turns, result.reward) == (FailureClass.COMPLETED, 2, None)
    assert [(m.role, m.content) for m in result.transcript if m.role != "assistant"] == [
        ("system", "be good"), ("user", "p"), ("tool", "a.txt"),
    ]  # fmt: skip
    (session,) = parts.gateway.sessions.values()
    assert session.opened["sampling"] == {"temperature": 0.7}
    assert (session.opened["group_id"], session.opened["rollout_id"]) == ("g", "r")
    assert (session.state, session.failure_class) == ("finalized", "completed")
    assert session.outcome == {"reward": None, "turns": 2, "code": ""}
    parts.assert_nothing_left()


async def test_each_request_extends_the_one_before_byte_for_byte(fakes):
    parts = fakes([call("shell", command="1"), call("shell", says="hm", command="é"), say("done")])
    await parts.paddock.run(TASK)
    (session,) = parts.gateway.sessions.values()
    for shorter, longer in zip(session.requests, session.requests[1:], strict=False):
        assert longer["messages"][: len(shorter["messages"])] == shorter["messages"]
        assert longer["tools"] == shorter["tools"]


@pytest.mark.parametrize(
    ("script", "settings", "failure_class", "code"),
    [
        ([call("shell", command="x")], {}, FailureClass.TRUNCATED, "max_turns"),
        ([say("half", finish_reason="length")], {}, FailureClass.TRUNCATED, "length"),
        ([say("half", finish_reason="abort")], {}, FailureClass.INFRASTRUCTURE, "gateway_error"),
        ([{"error": {"code": "context_length_exceeded"}}], {}, FailureClass.OVERFLOW, "context_overflow"),
        ([{"error": {"code": "bad_request"}}], {}, FailureClass.INFRASTRUCTURE, "gateway_refused"),
        ([{"status": 410, "error": {"code": "gone"}}], {}, FailureClass.INFRASTRUCTURE, "gateway_refused"),
        ([{"status": 500, "error": {"code": "x"}}], {}, FailureClass.INFRASTRUCTURE, "gateway_error"),
        (
            [call("nope")],
            {"whitebox": WhiteboxConfig(max_mistakes=2)},
            FailureClass.POLICY_FAILURE,
            "mistakes",
        ),
    ],
)
async def test_p8_every_end_has_its_class_and_leaves_nothing(fakes, script, settings, failure_class, code):
    parts = fakes(script, **settings)
    result = await parts.paddock.run(Task("t", prompt="p", limits=TaskLimits(max_turns=3)))
    assert (result.failure_class, result.ending.code) == (failure_class, code)
    (session,) = parts.gateway.sessions.values()
    assert session.failure_class == str(failure_class)
    parts.assert_nothing_left()


async def test_the_call_of_the_last_turn_is_still_done(fakes):
    parts = fakes([call("write", path="out", content="x")])
    task = Task("t", prompt="p", limits=TaskLimits(max_turns=1), artifacts=("out", "none"))
    result = await parts.paddock.run(task)
    assert result.failure_class is FailureClass.TRUNCATED
    assert (result.artifacts, result.missing_artifacts) == ({"out": b"x"}, ("none",))


def failing(parts, *errors):
    """A client of a gateway whose first calls fail so."""
    left = list(errors)
    inner = parts.gateway._complete

    async def answer(request):
        if left:
            raise left.pop(0)
        return await inner(request)

    return httpx.AsyncClient(transport=httpx.MockTransport(answer)), left


BROKEN = [
    httpx.ConnectError("refused"),
    httpx.ReadError("reset"),
    httpx.RemoteProtocolError("closed without a reply"),
]


@pytest.mark.parametrize("error", BROKEN)
async def test_a_gateway_that_restarts_in_the_middle_is_asked_again(fakes, error):
    parts = fakes([say("done")])
    http, left = failing(parts, error)
    async with http:
        result = await WhiteboxPaddock(parts.provider, parts.gateway, http).run(TASK)
    assert (result.failure_class, left) == (FailureClass.COMPLETED, [])


async def test_a_connection_that_stays_broken_is_infrastructure(fakes):
    parts = fakes([say("x")])
    http, left = failing(parts, *[httpx.ReadError("reset")] * 3)
    config = WhiteboxConfig(busy_retries=1)
    async with http:
        result = await WhiteboxPaddock(parts.provider, parts.gateway, http, whitebox=config).run(TASK)
    assert (result.ending.code, result.ending.retryable, len(left)) == ("gateway_error", True, 1)


async def test_a_busy_gateway_is_asked_again_after_its_retry_after(fakes):
    answers = [
        httpx.Response(429, headers={"retry-after": "0"}),
        httpx.Response(503, headers={"retry-after": "0"}),
    ]

    def script(messages):
        return say("done")

    parts = fakes(script)
    inner = parts.gateway._complete

    async def busy(request):
        return answers.pop() if answers else await inner(request)

    async with httpx.AsyncClient(transport=httpx.MockTransport(busy)) as http:
        result = await WhiteboxPaddock(parts.provider, parts.gateway, http).run(TASK)
    assert (result.failure_class, answers) == (FailureClass.COMPLETED, [])


@pytest.mark.parametrize(
    ("fault", "code", "retryable"),
    [(ConnectionError("down"), "gateway_error", True), ("refused", "gateway_refused", False)],
)
async def test_a_session_that_cannot_be_opened_is_infrastructure(fakes, fault, code, retryable):
    class RefusedError(Exception):
        status = 400

    parts = fakes([say("x")])
    parts.gateway.faults["open"] = RefusedError("bad sampling") if fault == "refused" else fault
    result = await parts.paddock.run(TASK)
    assert (result.ending.code, result.ending.stage, result.ending.retryable) == (
        code,
        Stage.SETUP,
        retryable,
    )
    assert (result.session_id, result.reward) == ("", None)
    parts.assert_nothing_left()


NOT_MENDED = [
    InvalidSpec("limits.pids: 4"),
    UserNamespacesForbidden("allow them"),
    Unsupported("egress"),
    LimitNotEnforceable("cpus"),
]


@pytest.mark.parametrize("error", NOT_MENDED)
async def test_what_no_second_attempt_can_mend_is_not_retryable(fakes, error):
    result = await fakes([say("x")], provider=FakeProvider(errors=[error])).paddock.run(TASK)
    assert (result.failure_class, result.ending.retryable) == (FailureClass.INFRASTRUCTURE, False)


async def test_a_provider_without_room_is_its_own_code_and_worth_another_attempt(fakes):
    result = await fakes([say("x")], provider=FakeProvider(errors=[Full("no room")])).paddock.run(TASK)
    assert (result.ending.code, result.ending.retryable) == ("sandbox_full", True)


async def test_a_finalize_that_fails_makes_it_infrastructure_and_drops_the_session(fakes):
    async def good(view):
        return 1.0

    parts = fakes([say("x")])
    parts.gateway.faults["finalize"] = ConnectionError("down")
    result = await parts.paddock.run(TASK, good)
    assert (result.failure_class, result.reward, result.finalize) == (FailureClass.INFRASTRUCTURE, None, None)
    assert [s.state for s in parts.gateway.sessions.values()] == ["deleted"]


async def test_an_end_that_fails_too_hides_not_why_the_rollout_failed(fakes):
    seen = []
    parts = fakes([say("x")], on_event=seen.append, whitebox=WhiteboxConfig(busy_retries=0))
    gone = httpx.ConnectError("refused")
    parts.gateway.faults.update(complete=gone, finalize=gone, delete=gone)
    result = await parts.paddock.run(TASK)
    assert (result.failure_class, result.ending.code) == (FailureClass.INFRASTRUCTURE, "gateway_error")
    assert result.ending.stage is Stage.AGENT
    assert "cleanup_failed" in [event.name for event in seen], "the end's own failure is told apart"


async def test_stages_out_of_order_are_refused(fakes):
    parts = fakes([say("x")])

    async def good(view):
        return 1.0

    rollout = parts.paddock.rollout(TASK)
    with pytest.raises(RolloutStateError):
        await rollout.run()
    async with rollout as r:
        with pytest.raises(RolloutStateError, match=r"r\.run\(\) first"):
            await r.grade(good)
        with pytest.raises(RolloutStateError):
            _ = r.result
        await r.run()
        with pytest.raises(RolloutStateError):
            await r.__aenter__()
    assert r.result.failure_class is FailureClass.COMPLETED
    with pytest.raises(RolloutStateError):
        _ = r.sandbox


async def test_a_rollout_that_never_ran_is_aborted(fakes):
    parts = fakes([say("x")])
    async with parts.paddock.rollout(TASK) as r:
        pass
    assert (r.result.failure_class, r.result.ending.code) == (FailureClass.ABORTED, "not_run")
    parts.assert_nothing_left()


async def test_text_calls_need_no_tool_grammar(fakes):
    parts = fakes(
        [say("let me <call> cat n </call> see"), say("7")],
        provider=FakeProvider(lambda sandbox, inv: completed(f"ran {inv.command}")),
        protocol=TextCallProtocol(result="Output:\n{output}"),
    )
    result = await parts.paddock.run(TASK)
    assert result.transcript[3] == ChatMessage("user", "Output:\nran cat n")
    (session,) = parts.gateway.sessions.values()
    assert "tools" not in session.requests[0]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [({"pattern": "("}, "regular expression"), ({"pattern": "x"}, "groups"), ({"result": "no"}, "output")],
)
def test_a_text_protocol_that_cannot_work_is_refused(arguments, told):
    with pytest.raises(TaskError, match=told):
        TextCallProtocol(**arguments)


async def test_a_listener_that_raises_changes_no_rollout(fakes, caplog):
    def broken(event):
        raise ZeroDivisionError

    parts = fakes([say("done")], on_event=broken)
    assert (await parts.paddock.run(TASK)).failure_class is FailureClass.COMPLETED
    assert "the listener failed on the event 'ended'" in caplog.text
    parts.assert_nothing_left()


@pytest.mark.parametrize("given", [{"command": "ls"}, None, 7])
def test_arguments_that_are_no_text_are_no_message_of_a_model(given):
    asked = {"id": "c1", "type": "function", "function": {"name": "shell", "arguments": given}}
    message = {"role": "assistant", "content": None, "tool_calls": [asked]}
    with pytest.raises(TypeError, match="arguments of a tool call"):
        assistant_from_wire(message)
