"""Halves of surrogate pairs: agents in JavaScript send them where they cut a text within an emoji."""

import json

import pytest
from dressage_proxy.surrogates import HALVES_NOTE, load_json, whole
from hypothesis import given
from hypothesis import strategies as st

HALF = "cut \ud83d"
MENDED = "cut \N{REPLACEMENT CHARACTER}"
ANY_TEXT = st.text(st.sampled_from("aé😀\\\ud83d\ude00\ud800"), max_size=6)
VALUES = st.recursive(
    ANY_TEXT | st.integers(-(2**63), 2**63) | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)
BASH = {"name": "shell", "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}}


@given(VALUES)
def test_every_text_of_a_body_can_be_written_as_utf8_and_the_rest_is_as_it_was(value):
    value = json.loads(json.dumps(value))  # two halves side by side are a character in JSON
    read, mended = load_json(json.dumps(value).encode())
    assert read == whole(value)
    json.dumps(read, ensure_ascii=False).encode()
    assert mended == any(0xD800 <= ord(c) <= 0xDFFF for c in json.dumps(value, ensure_ascii=False))


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"a": "\\ud83d}', b'["\\ud83d", NaN]', b'"\xed\xa0\xbd"', b'"\\ud83d\xff"']
)
def test_what_is_no_json_stays_none(data):
    with pytest.raises(ValueError, match=r".+"):
        load_json(data)


ASKED = [
    ("chat/completions", {"messages": [{"role": "user", "content": HALF}]}),
    ("responses", {"input": HALF}),
    ("responses", {"input": [{"role": "user", "content": "q"},
                             {"type": "function_call", "call_id": "x", "name": "f", "arguments": "{}"},
                             {"type": "function_call_output", "call_id": "x", "output": HALF}]}),
    ("messages", {"max_tokens": 9,
                  "messages": [{"role": "user", "content": [{"type": "text", "text": HALF}]}]}),
    ("messages", {"max_tokens": 9, "system": HALF, "messages": [{"role": "user", "content": "q"}]}),
]  # fmt: skip


@pytest.mark.parametrize(("route", "body"), ASKED)
async def test_a_text_that_was_cut_within_an_emoji_is_read_as_javascript_writes_it(rig, route, body):
    session = await rig.open()
    reply = await rig.http.post(f"/s/{session}/v1/{route}", content=json.dumps(body))
    assert reply.status_code == 200, reply.text
    assert MENDED in rig.codec.decode(rig.engine.requests[0].input_ids)
    assert HALVES_NOTE in rig.tree(session).turn(0).extra["flags"]


@pytest.mark.parametrize("stream", [True, False])
async def test_half_a_pair_that_the_model_sampled_comes_back_as_the_same_turn(rig, stream):
    rig.script('<tool_call>\n{"name": "shell", "arguments": {"a": "cut \\ud83d"}}\n</tool_call>', "done")
    session = await rig.open()
    asked = [{"role": "user", "content": "q"}]
    body = {"max_tokens": 50, "messages": asked, "tools": [BASH], "stream": stream}
    first = await rig.http.post(f"/s/{session}/v1/messages", json=body)
    (call_id,) = rig.tree(session).turn(0).extra["wire_ids"]
    block = {"type": "tool_use", "id": call_id, "name": "shell", "input": {"a": HALF}}
    if not stream:
        block = first.json()["content"][0]
    said = [{"type": "tool_result", "tool_use_id": block["id"], "content": "ok"}]
    history = [*asked, {"role": "assistant", "content": [block]}, {"role": "user", "content": said}]
    reply = await rig.http.post(
        f"/s/{session}/v1/messages", content=json.dumps({**body, "messages": history, "stream": False})
    )
    assert reply.status_code == 200, reply.text
    assert set(rig.tree(session).turn(1).extra.get("flags", ())) <= {HALVES_NOTE}
    assert len((await rig.end(session)).segments) == 1


async def test_half_a_pair_in_a_call_that_was_not_sampled_here_is_rendered(rig, shell):
    session = await rig.open()
    function = {"name": "shell", "arguments": '{"a": "cut \\ud83d"}'}
    call = {"id": "x", "type": "function", "function": function}
    history = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x", "content": "ok"},
    ]
    reply = await rig.post(session, {"messages": history, "tools": [shell]})
    assert reply.status_code == 200, reply.text
    assert MENDED in rig.codec.decode(rig.engine.requests[0].input_ids)
