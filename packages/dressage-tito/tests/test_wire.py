from __future__ import annotations

import json

import pytest
from dressage_tito import Message, MessageError, ToolCall, message_from_json, message_to_json, wire_arguments
from hypothesis import given
from hypothesis import strategies as st

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
names = st.text(st.sampled_from("abcxyz_"), min_size=1, max_size=8)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    role = draw(st.sampled_from(["system", "developer", "user", "assistant", "tool"]))
    calls = ()
    if role == "assistant":
        arguments = draw(
            st.lists(st.dictionaries(texts, texts | st.integers() | st.none(), max_size=3), max_size=3)
        )
        calls = tuple(
            ToolCall(draw(names), draw(names), value, json.dumps(value, ensure_ascii=False))
            for value in arguments
        )
    return Message(
        role,
        draw(texts),
        reasoning=draw(texts) if role == "assistant" else "",
        tool_calls=calls,
        tool_call_id=draw(names) if role == "tool" else "",
        name=draw(names) if role == "tool" else "",
    )


@given(messages())
def test_a_message_survives_the_wire(message: Message) -> None:
    assert message_from_json(json.loads(json.dumps(message_to_json(message)))) == message


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ("hi", "messages[3]"),
        (None, "messages[3]"),
        ([], "messages[3]"),
        ({}, "messages[3].role"),
        ({"role": "robot"}, "messages[3].role"),
        ({"role": "user", "content": 7}, "messages[3].content"),
        ({"role": "user", "content": {"a": 1}}, "messages[3].content"),
        ({"role": "user", "content": [7]}, "messages[3].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[3].content[0].text"),
        ({"role": "user", "content": "\ud800"}, "messages[3].content"),
        ({"role": "user", "tool_calls": [{"function": {"name": "f"}}]}, "messages[3].tool_calls"),
        ({"role": "assistant", "tool_calls": {}}, "messages[3].tool_calls"),
        ({"role": "assistant", "tool_calls": ["f"]}, "messages[3].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[3].tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[3].tool_calls[0].function.name"),
        (
            {"role": "assistant", "tool_calls": [{"type": "custom", "function": {"name": "f"}}]},
            "messages[3].tool_calls[0].type",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 3}}]},
            "messages[3].tool_calls[0].function.arguments",
        ),
        ({"role": "tool", "content": "r"}, "messages[3].tool_call_id"),
        ({"role": "assistant", "function_call": {"name": "f"}}, "messages[3].function_call"),
        ({"role": "assistant", "audio": {"id": "a"}}, "messages[3].audio"),
        ({"role": "assistant", "reasoning_content": 3}, "messages[3].reasoning_content"),
    ],
)
def test_e18_a_malformed_message_is_an_error_that_names_its_field_and_a_fix(body: object, field: str) -> None:
    with pytest.raises(MessageError) as caught:
        message_from_json(body, "messages[3]")
    assert caught.value.field == field
    assert len(caught.value.fix) > 10


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url"])
def test_c14_a_part_that_is_no_text_is_refused_by_name_never_dropped(kind: str) -> None:
    body = {
        "role": "tool",
        "tool_call_id": "c",
        "content": [{"type": "text", "text": "a"}, {"type": kind, kind: {}}],
    }
    with pytest.raises(MessageError, match=r"messages\[0\]\.content\[1\]\.type: is .*text part"):
        message_from_json(body)


def test_marks_that_clients_attach_are_taken_and_text_parts_joined() -> None:
    body = {
        "role": "assistant",
        "content": [{"type": "text", "text": "a", "cache_control": {}}, {"type": "text", "text": "b"}],
        "annotations": [],
        "refusal": None,
        "audio": None,
        "function_call": None,
        "tool_calls": None,
        "reasoning": "r",
    }
    assert message_from_json(body) == Message("assistant", "ab", reasoning="r")


def test_a_calls_text_stays_as_it_was_written() -> None:
    text = '{"path":"café/a.txt","n":1.0,"b":1,"a":2}'
    body = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": text}}]}
    message = message_from_json(body)
    assert message.tool_calls[0].arguments_text == text
    assert message_to_json(message)["tool_calls"][0]["function"]["arguments"] == text


def test_a_call_whose_text_is_no_object_is_kept_as_text() -> None:
    for text in ("not json", "[1]", '"s"'):
        body = {
            "role": "assistant",
            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": text}}],
        }
        call = message_from_json(body).tool_calls[0]
        assert (call.arguments, call.arguments_text) == ({}, text)


@pytest.mark.parametrize("text", ["[1]", "null", "NaN", "1", '"x"', "{'a': 1}", "[" * 9000, "9" * 5000, ""])
def test_text_that_is_no_object_survives_the_wire_as_it_was_written(text: str) -> None:
    said = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": text}}]}
    message = message_from_json(said)
    assert message_from_json(message_to_json(message)) == message
    assert wire_arguments(message.tool_calls[0]) == text or not text


def test_arguments_that_are_nested_too_deeply_for_this_interpreter_are_given_as_they_were_written() -> None:
    text = '{"a": ' * 5000 + "{}" + "}" * 5000
    assert wire_arguments(ToolCall("", "f", {"a": {}}, text)) == text
    deep: dict[str, object] = {}
    for _ in range(5000):
        deep = {"a": deep}
    said = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": deep}}]}
    with pytest.raises(MessageError, match=r"tool_calls\[0\]\.function\.arguments.*nested too deeply"):
        message_from_json(said)


def test_arguments_that_the_schema_retyped_are_written_anew() -> None:
    assert wire_arguments(ToolCall("", "f", {"n": 7}, '{"n": "7"}')) == '{"n": 7}'
    assert wire_arguments(ToolCall("", "f", {"n": "é"}, '{"n":"\\u00e9"}')) == '{"n":"\\u00e9"}'
