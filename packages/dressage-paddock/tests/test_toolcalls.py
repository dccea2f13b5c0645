"""Tools that others wrote: what is refused before a model calls them, and what their defects become."""

from __future__ import annotations

import asyncio
import functools
import sys
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from dressage_paddock import (
    ChatMessage,
    FailureClass,
    Grade,
    Hooks,
    ShellTool,
    Task,
    TaskError,
    TextCallProtocol,
    ToolBounds,
    ToolError,
    ToolFailedError,
    check_tools,
    toolcalls,
)
from dressage_paddock.fake import call, say
from dressage_paddock.toolcalls import call_tool
from dressage_sandbox import InvalidSpec, SandboxSpec
from dressage_sandbox.errors import file_error
from dressage_sandbox.fake import FakeSandbox, completed

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
BOUNDS = ToolBounds(timeout_s=30.0, output_bytes=100)
HASTY = replace(BOUNDS, timeout_s=0.01)


class Own:
    name = "own"
    description = "A tool of somebody's."
    parameters = SCHEMA

    def __init__(self, gives="fine"):
        self._gives = gives

    async def call(self, sandbox, arguments, bounds):
        if isinstance(self._gives, BaseException):
            raise self._gives
        if self._gives is Ellipsis:
            await asyncio.sleep(3600)
        return self._gives


def having(**changes):
    return type("Changed", (Own,), changes)()


def plain(self, sandbox, arguments, bounds):
    return "x"


@pytest.mark.parametrize(
    ("tools", "told"),
    [
        ([Own], r"the class Own: give an object, Own\(\)"),
        ([object()], "name is missing"),
        ([having(description=None)], "the tool 'own': description"),
        ([having(call=plain)], "the tool 'own': call is no `async def"),
        ([having(call=None)], "the tool 'own': call is no `async def"),
        ([Own(), Own()], "two tools have the name 'own'"),
        ([having(parameters={})], "parameters has no properties"),
        ([having(parameters={"properties": {"x": {"type": "array"}}})], "parameter 'x' is 'array'"),
        ([having(parameters={"properties": {"x": {"type": ["string", "null"]}}})], "parameter 'x' is"),
        ([having(parameters={"properties": {"x": {"anyOf": []}}})], "parameter 'x' is None"),
        ([having(parameters={"properties": {}, "required": ["y"]})], "requires 'y'"),
    ],
)
def test_a_tool_that_no_call_could_use_is_refused_by_its_name(tools, told):
    with pytest.raises(TaskError, match=told):
        check_tools(tools)


def test_tools_that_can_be_called_are_taken_decorated_ones_too():
    @functools.wraps(Own.call)
    def decorated(self, *given):
        return Own.call(self, *given)

    check_tools([ShellTool(), Own()])
    check_tools([having(call=decorated)])


@pytest.mark.parametrize(
    ("protocol", "told"),
    [
        (TextCallProtocol(), "calls go to the tool 'shell', but the tools are own"),
        (TextCallProtocol(tool="own", argument="y"), "calls give 'y', which the tool 'own' does not take"),
    ],
)
async def test_text_calls_that_no_tool_could_take_are_refused(fakes, protocol, told):
    with pytest.raises(TaskError, match=told):
        fakes([say("done")], tools=[Own()], protocol=protocol)


async def test_an_agent_is_not_made_with_such_a_tool(fakes):
    with pytest.raises(TaskError, match="call is no"):
        fakes([say("done")], tools=[having(call=plain)])


def box():
    return FakeSandbox(SandboxSpec(), lambda sandbox, invocation: completed("ok"), "s", {})


@pytest.mark.parametrize(
    ("gives", "told"),
    [
        (None, "the tool 'own' gave NoneType: give text"),
        (7, "the tool 'own' gave int"),
        (b"\xff", "the tool 'own' gave bytes"),
        (KeyError("k"), "the tool 'own' failed: KeyError: 'k'"),
        (SystemExit(3), "the tool 'own' failed: BrokenOffError: SystemExit: 3"),
        (TimeoutError("its own"), "the tool 'own' failed: TimeoutError: its own"),
    ],
)
async def test_p8_a_tools_own_defect_is_told_by_its_name_and_is_not_the_models(gives, told):
    with pytest.raises(ToolFailedError, match=told):
        await call_tool([Own(gives)], box(), "own", '{"x": 1}', BOUNDS)


async def test_a_tool_that_never_ends_is_ended_soon_after_its_bound(monkeypatch):
    monkeypatch.setattr(toolcalls, "GRACE_S", 0.01)
    with pytest.raises(ToolFailedError, match=r"the tool 'own' took longer than .*bounds\.timeout_s"):
        await call_tool([Own(...)], box(), "own", '{"x": 1}', HASTY)


async def test_what_a_tool_says_wrong_of_a_call_goes_to_the_model():
    assert await call_tool([Own(ToolError("no"))], box(), "own", '{"x": 1}', BOUNDS) == ("error: no", True)


async def test_a_tools_text_is_bounded_and_is_unicode():
    text, _ = await call_tool([Own("x" * 50_000_000)], box(), "own", '{"x": 1}', BOUNDS)
    assert len(text) < 1400
    assert text.endswith("[cut: 49998776 more characters]")
    assert await call_tool([Own("a\ud800b")], box(), "own", '{"x": 1}', BOUNDS) == ("a?b", False)


@pytest.mark.parametrize("wrong", [ToolError, lambda text: file_error(2, text), InvalidSpec])
async def test_what_is_said_wrong_of_a_call_is_bounded_and_is_unicode_too(wrong):
    text, mistake = await call_tool([Own(wrong("a\udcff" + "x" * 50_000))], box(), "own", '{"x": 1}', BOUNDS)
    assert (mistake, len(text) < 1400, "a?xxx" in text) == (True, True, True)
    text, mistake = await call_tool([], box(), "own" * 5000, "{}", BOUNDS)
    assert (mistake, len(text) < 1400) == (True, True)


async def test_p8_a_broken_tool_is_infrastructure_with_its_own_code(fakes):
    parts = fakes([call("own", x=1), say("done")], tools=[Own(None)])
    result = await parts.paddock.run(Task("t", prompt="p"))
    assert (result.failure_class, result.ending.code) == (FailureClass.INFRASTRUCTURE, "tool_failed")
    parts.assert_nothing_left()


@pytest.mark.parametrize("number", [1, True, 0.5, Fraction(1, 2), np.float32(0.5), np.int64(2)])
def test_every_kind_of_real_number_is_a_reward(number):
    assert Grade(number).finite


@pytest.mark.parametrize("given", [None, "1.0", 1j, 10**400, np.float32("nan"), -np.inf, {"r": 1}])
def test_what_is_no_finite_number_is_none(given):
    assert not Grade(given).finite


async def test_p8_a_grader_that_ends_the_program_is_a_grader_that_failed(fakes):
    async def grade(view):
        sys.exit(1)  # as unittest.main() does

    parts = fakes([say("done")])
    result = await parts.paddock.run(Task("t", prompt="p"), grade)
    assert (result.ending.code, result.reward) == ("grader_failed", None)
    assert "SystemExit: 1" in result.ending.detail
    parts.assert_nothing_left()


class Skipped(BaseException):
    """As the outcomes of test runners are, which "except Exception" must not catch."""


async def a_task_of_its_own_was_cancelled():
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task


async def a_test_runners_outcome():
    raise Skipped("no network here")


@pytest.mark.parametrize("broken_off", [a_task_of_its_own_was_cancelled, a_test_runners_outcome])
async def test_p8_code_of_others_that_is_broken_off_from_within_ends_its_own_stage_alone(fakes, broken_off):
    async def part(*given):
        await broken_off()

    class Odd(Own):
        async def call(self, sandbox, arguments, bounds):
            await broken_off()

    ends = {
        "grader_failed": (fakes([say("done")]), part),
        "hook_failed": (fakes([say("done")], hooks=Hooks(before_agent=part)), None),
        "tool_failed": (fakes([call("own", x=1)], tools=[Odd("")]), None),
    }
    for code, (parts, grade) in ends.items():
        result = await parts.paddock.run(Task("t", prompt="p"), grade)
        assert (result.failure_class, result.ending.code) == (FailureClass.INFRASTRUCTURE, code)
        assert (result.reward, result.ending.retryable) == (None, True)
        parts.assert_nothing_left()


async def test_a_rollout_that_is_cancelled_while_its_graders_own_task_was_is_cancelled(fakes):
    began = asyncio.Event()

    async def grade(view):
        began.set()
        await asyncio.sleep(60)

    parts = fakes([say("done")])
    running = asyncio.create_task(parts.paddock.run(Task("t", prompt="p"), grade))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    parts.assert_nothing_left()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"prompt": 3}, "prompt is int"),
        ({"prompt": "p", "system": None}, "system is NoneType"),
        ({"prompt": "p", "artifacts": "answer.txt"}, "artifacts: give a tuple of str"),
        ({"messages": ({"role": "user", "content": "p"},)}, "messages: give a tuple of ChatMessage"),
        ({"messages": (ChatMessage("user", None),)}, r"messages\[0\].content is NoneType"),
        ({"prompt": "p", "limits": {}}, "limits is dict: give TaskLimits"),
        ({"prompt": "p", "files": [("a", b"")]}, "files is list"),
    ],
)
def test_a_tasks_field_of_a_wrong_type_is_named_where_it_is_made(fields, told):
    with pytest.raises(TaskError, match=told):
        Task("t", **fields)


def test_an_instance_id_is_text():
    with pytest.raises(TaskError, match="instance_id is int"):
        Task(1, prompt="p")
