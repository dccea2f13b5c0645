"""What JSON can spell and a tokenizer cannot write is refused with a reason, never an exception."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dressage_tito import ChatCodec, Message, Refusal, Tool, ToolCall, message_from_json

USER = Message("user", "u")
HALF = "\ud83d"


def _tool(**function: Any) -> Tool:
    return {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, **function}}


def _called(arguments_text: str) -> list[Message]:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments_text}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    return [USER, message_from_json(said, "messages[1]"), Message("tool", "r", tool_call_id="c1")]


@pytest.mark.parametrize(
    ("messages", "tools"),
    [
        ([Message("user", f"a{HALF}b")], None),
        ([USER], [_tool(description=HALF)]),
        ([USER], [_tool(name=f"f{HALF}")]),
        ([USER], [_tool(parameters={HALF: 1})]),
        (_called('{"a": "\\ud83d"}'), [_tool()]),
        (_called('{"\\ud83d": 1}'), [_tool()]),
        ([USER, Message("assistant", "a", reasoning=HALF)], None),
    ],
)
def test_half_of_a_surrogate_pair_is_refused_wherever_it_stands(
    toy: ChatCodec, messages: list[Message], tools: list[Tool] | None
) -> None:
    refused = toy.start(messages, tools)
    assert isinstance(refused, Refusal)
    assert refused.reason == "half_a_character"


def test_a_tool_result_with_half_of_a_surrogate_pair_is_refused(toy: ChatCodec) -> None:
    refused = toy.extend([1], [Message("tool", HALF, tool_call_id="c1")])
    assert isinstance(refused, Refusal)
    assert refused.reason == "half_a_character"


def test_tools_and_arguments_that_are_nested_too_deeply_are_refused(toy: ChatCodec) -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"x": deep}
    call = ToolCall("c1", "f", deep, "{}")
    for messages, tools in (
        ([USER], [_tool(parameters=deep)]),
        ([USER, Message("assistant", tool_calls=(call,))], [_tool()]),
    ):
        refused = toy.start(messages, tools)
        assert isinstance(refused, Refusal)
        assert refused.reason == "nested_too_deeply"


@pytest.mark.parametrize(
    "text", ['{"a": ' + "9" * 5000 + "}", '{"a": ' + "[" * 9000 + "]" * 9000 + "}", "{a:1}"]
)
def test_arguments_that_no_reader_takes_are_printed_as_they_were_written(toy: ChatCodec, text: str) -> None:
    start = toy.start(_called(text), [_tool()])
    assert not isinstance(start, Refusal)
    assert json.dumps(text) in toy.decode(start.ids)
