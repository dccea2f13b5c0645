"""Keys of messages: equal for what a client made of the same message on its way."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from dressage_proxy.canonical import message_key
from dressage_tito import Message, ToolCall
from hypothesis import given
from hypothesis import strategies as st


def key(arguments: Any) -> str:
    call = ToolCall("id", "f", arguments, json.dumps(arguments))
    return message_key(Message("assistant", "", "", (call,)))


numbers = st.one_of(st.integers(), st.integers(min_value=2**52), st.floats(allow_nan=False))
values = st.recursive(
    st.one_of(numbers, st.text(max_size=4), st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner)),
    max_leaves=8,
)


def javascript(value: Any) -> Any:
    """What a client in JavaScript reads and writes again: every number is a double, whole ones as such."""
    if isinstance(value, dict):
        return {name: javascript(item) for name, item in value.items()}
    if isinstance(value, list):
        return [javascript(item) for item in value]
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        return value
    double = float(value)
    return int(double) if double.is_integer() and abs(double) < 1e21 else double


@given(st.dictionaries(st.text(max_size=3), values, min_size=1))
def test_c10_arguments_whose_numbers_a_client_wrote_anew_have_the_same_key(arguments):
    assert key(javascript(arguments)) == key(arguments)


@pytest.mark.parametrize("whole", [10**19, 2**64, 10**25, -(10**40)])
def test_c10_a_number_beyond_64_bits_is_the_same_after_a_parser_that_has_none(whole):
    read = orjson.loads(json.dumps({"n": whole}))
    assert key(read) == key({"n": whole})


@pytest.mark.parametrize(
    ("one", "other"), [(1, 2), (1.5, 1), (0, False), (1, True), (1, "1"), (0.1, 0.2), (None, 0), (10**400, 1)]
)
def test_other_values_have_other_keys(one, other):
    assert key({"n": one}) != key({"n": other})


async def test_c10_calls_under_a_clients_own_ids_are_known_though_it_wrote_their_numbers_anew(
    rig, shell, call
):
    rig.script(call(n=1.0, big=10**25, small=[1e-7, -0.0]), "done")
    session = await rig.open()
    (made,) = (await rig.chat(session, "go", tools=[shell])).choices[0].message.tool_calls
    arguments = json.dumps(javascript(json.loads(made.function.arguments)))
    again = {"id": "other1", "type": "function", "function": {"name": "shell", "arguments": arguments}}
    said = {"role": "assistant", "content": None, "tool_calls": [again]}
    await rig.chat(
        session, "go", said, {"role": "tool", "tool_call_id": "other1", "content": ""}, tools=[shell]
    )
    first, second = rig.engine.requests
    sampled = [*first.input_ids, *first.output_ids]
    assert second.input_ids[: len(sampled)] == sampled
    trajectory = await rig.end(session)
    assert len(trajectory.segments) == 1
    assert not trajectory.lost_tokens
