"""A turn whose thought, text and calls come back as messages of their own is still the one sampled."""

from __future__ import annotations

from typing import Any

import pytest
from dressage_proxy.canonical import message_key
from dressage_proxy.interleaved import turn_by_turn, whole_turns
from dressage_proxy.recents import Recents
from dressage_tito import message_from_json
from hypothesis import given, settings
from hypothesis import strategies as st

TOOLS = {
    "chat": {"type": "function", "function": {"name": "shell", "parameters": {"type": "object"}}},
    "messages": {"name": "shell", "input_schema": {"type": "object"}},
    "responses": {"type": "function", "name": "shell", "parameters": {"type": "object"}},
}
USER = {"role": "user", "content": "go"}


async def ask(rig, dialect: str, session: str, items: list[Any]) -> list[dict[str, Any]]:
    """Thought, text and calls of the reply, each as history of the dialect has it alone."""
    route = {"chat": "chat/completions"}.get(dialect, dialect)
    body: dict[str, Any] = {"model": "m", "tools": [TOOLS[dialect]]}
    body["input" if dialect == "responses" else "messages"] = items
    if dialect == "messages":
        body["max_tokens"] = 500
    reply = await rig.http.post(f"/s/{session}/v1/{route}", json=body)
    assert reply.status_code == 200, reply.text
    shown = reply.json()
    if dialect == "responses":
        return list(shown["output"])
    if dialect == "messages":
        return [{"role": "assistant", "content": [block]} for block in shown["content"]]
    message = shown["choices"][0]["message"]
    parts = [{"role": "assistant", "content": None, "tool_calls": [call]} for call in message["tool_calls"]]
    thought = {"role": "assistant", "content": "", "reasoning_content": message["reasoning_content"]}
    return [thought, {"role": "assistant", "content": message["content"]}, *parts]


def answer(dialect: str, part: dict[str, Any]) -> dict[str, Any]:
    if dialect == "responses":
        return {"type": "function_call_output", "call_id": part["call_id"], "output": "is"}
    if dialect == "messages":
        block = part["content"][-1]
        result = {"type": "tool_result", "tool_use_id": block["id"], "content": "is"}
        return {"role": "user", "content": [result]}
    return {"role": "tool", "tool_call_id": part["tool_calls"][0]["id"], "content": "is"}


ORDERS = {
    "as they came": [0, 1, 2, 3],
    "the thought last": [1, 2, 3, 0],
    "the thought behind the text": [1, 0, 2, 3],
    "the thought before each call": [0, 1, 2, 0, 3],
    "the text between the calls": [0, 2, 1, 3],
    "the text behind the calls": [0, 2, 3, 1],
    "without the thought": [1, 2, 3],
}


@pytest.mark.parametrize("dialect", TOOLS)
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
async def test_c23_parts_of_a_turn_in_messages_of_their_own_are_the_one_turn(rig, call, dialect, order):
    rig.script(
        "<think>\nhm\n</think>\n\nI look." + call(n=1) + call(n=2),
        "<think>\nso\n</think>\n\ndone" + call(n=3),
    )
    session = await rig.open()
    parts = await ask(rig, dialect, session, [USER])
    assert len(parts) == 4
    history = [USER, *(parts[at] for at in order), *(answer(dialect, part) for part in parts[2:])]
    await ask(rig, dialect, session, history)
    first, second = rig.engine.requests
    sampled = [*first.input_ids, *first.output_ids]
    assert second.input_ids[: len(sampled)] == sampled
    assert rig.codec.decode(second.input_ids[len(sampled) :]).count("assistant") == 1, "nothing is said twice"
    trajectory = await rig.end(session)
    assert len(trajectory.segments) == 1
    assert not trajectory.lost_tokens


@pytest.mark.parametrize("dialect", TOOLS)
async def test_c23_calls_one_by_one_that_repeat_what_was_thought_and_said_are_the_one_turn(
    rig, call, dialect
):
    rig.script(
        "<think>\nhm\n</think>\n\nI look." + call(n=1) + call(n=2),
        "<think>\nso\n</think>\n\ndone" + call(n=3),
    )
    session = await rig.open()
    thought, text, one, two = await ask(rig, dialect, session, [USER])
    before = [thought, text]
    if dialect == "chat":
        one, two = ({**thought, **text, **made, "content": text["content"]} for made in (one, two))
        before = []
    elif dialect == "messages":
        both = [*thought["content"], *text["content"]]
        one, two = ({**made, "content": [*both, *made["content"]]} for made in (one, two))
        before = []
    history = [USER, *before, one, answer(dialect, one), *before[:1], two, answer(dialect, two)]
    await ask(rig, dialect, session, history)
    first, second = rig.engine.requests
    sampled = [*first.input_ids, *first.output_ids]
    assert second.input_ids[: len(sampled)] == sampled
    trajectory = await rig.end(session)
    assert len(trajectory.segments) == 1
    assert not trajectory.lost_tokens


def chat_call(wire: str) -> dict[str, Any]:
    return {"id": wire, "type": "function", "function": {"name": "f", "arguments": "{}"}}


def assistant(text: str = "", calls: tuple[str, ...] = (), thought: str = "") -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [chat_call(wire) for wire in calls]
    if thought:
        message["reasoning_content"] = thought
    return message


def keys(*messages: dict[str, Any]) -> set[str]:
    return {message_key(message_from_json(message)) for message in messages}


TURNS = [
    assistant("look", ("one", "two")), assistant("look"), assistant("", ("three",)),
    assistant("a", ("four",)), assistant("b"),
]  # fmt: skip
CALLS = {"one": 0, "two": 0, "three": 2, "four": 3}


@pytest.mark.parametrize(
    "history",
    [
        [assistant("look"), assistant("", ("three",))],
        [assistant("b"), assistant("look")],
        [assistant("b"), assistant("look", ("one", "two"))],
        [assistant(""), assistant("look")],
        [assistant("lo"), assistant("ok")],
        [assistant("", thought="x"), USER, assistant("b")],
        [USER, assistant("look"), USER, assistant("", ("one", "two"))],
    ],
)
def test_c23_turns_in_a_row_and_what_was_put_beside_them_stay_apart(history):
    returned = keys(*TURNS)
    raw, handles = whole_turns(returned, history, {1: "h"})
    assert raw is history
    assert handles == {1: "h"}


def test_c23_parts_with_the_handles_of_two_turns_stay_apart():
    history = [assistant(thought="x"), assistant("b", thought="y")]
    assert len(whole_turns(keys(*TURNS), history, {0: "one", 1: "one"})[0]) == 1
    assert whole_turns(keys(*TURNS), history, {0: "one", 1: "two"})[0] is history


@pytest.mark.parametrize(
    "broken", [None, 5, {"role": "assistant", "tool_calls": [None]}, assistant("b") | {"tool_calls": 5}]
)
def test_what_is_no_message_is_left_for_who_names_it(broken):
    history = [assistant("look"), broken, assistant("", ("one", "two"))]
    assert whole_turns(keys(*TURNS), history, {})[0] == history


@st.composite
def split(draw: st.DrawFn) -> list[Any]:
    """Turns, each whole or in parts, with messages of the user between them or not."""
    history: list[Any] = []
    for turn in draw(st.lists(st.sampled_from(TURNS), max_size=4)):
        calls = turn.get("tool_calls", ())
        if draw(st.booleans()) and calls:
            parts = [assistant(thought="t"), assistant(turn["content"])]
            parts = [part for part in parts if draw(st.booleans()) or part["content"]]
            history += [part for part in parts if part["content"] or part.get("reasoning_content")]
            history += [{"role": "assistant", "content": "", "tool_calls": [made]} for made in calls]
        else:
            history.append(turn)
        history += [{"role": "tool", "tool_call_id": made["id"], "content": "r"} for made in calls]
        if draw(st.booleans()):
            history.append(USER)
    return history


@settings(deadline=None, max_examples=300)
@given(st.lists(split(), min_size=1, max_size=4))
def test_whether_earlier_requests_are_known_changes_nothing_of_which_turns_are_read(
    additions: list[list[Any]],
) -> None:
    returned, recents = keys(*TURNS), Recents()
    came: list[Any] = [USER]
    for added in additions:
        came = [*came, *added]
        read = recents.read(CALLS, {}, came, {}, returned=returned)
        assert read.raw == list(whole_turns(returned, *turn_by_turn(CALLS, came, {}))[0])
        spoken = [message for message in read.raw if message["role"] == "assistant"]
        assert all(keys(message) <= returned for message in spoken)
        recents.note(read, tuple(message_key(message_from_json(message)) for message in read.raw))
