"""Which turn an echo is, and which of its ids a broken one stands for."""

import numpy as np
import pytest
from dressage_proxy.echoes import turn_handle
from hypothesis import given, settings
from hypothesis import strategies as st

WORDS = st.lists(st.sampled_from(["I look. ", "é😀", "<b>&", "then\n", "x"]), max_size=6).map("".join)


class Turned:
    """One sampled turn of a session, and what finds its echoes."""

    def __init__(self, codec, text, wires=()):
        from dressage_proxy.canonical import message_key
        from dressage_proxy.echoes import Echoes
        from dressage_segments import EngineCall, IdsDigest, SessionInfo, TrajectoryTree, Turn
        from dressage_tito import Message

        delta = np.asarray([1, 2, 3], np.int32)
        ids = np.asarray(codec.encode_sample(text), np.int32)
        tool = {"type": "function", "function": {"name": "f"}}
        parsed = codec.parse(ids, reasoning_open=False, finish_reason="stop", tools=[tool])
        self.calls = [
            type(call)(f"wire{number}", call.name, call.arguments, call.arguments_text)
            for number, call in enumerate(parsed.tool_calls)
        ]
        self.message = Message("assistant", parsed.content, parsed.reasoning, tuple(self.calls))
        digest = IdsDigest().update(delta)
        call = EngineCall("c", len(delta), digest.hexdigest(), len(ids), "stop")
        self.turn = Turn(
            session_id="s", index=0, parent=-1, kind="main", cut_reason="",
            delta_ids=delta, delta_origin=np.zeros(3, np.uint8), output_ids=ids,
            logprobs=np.zeros(len(ids), np.float32), versions=np.zeros(len(ids), np.int32),
            calls=(call,), finish_reason="stop", tools_hash="", input_keys=("k",),
            reply_key=message_key(self.message),
            extra={"wire_ids": {made.id: "" for made in self.calls}},
        )  # fmt: skip
        self.tree = TrajectoryTree(SessionInfo("s", "i", "g", "r"))
        self.tree.add(self.turn)
        self.echoes = Echoes()
        self.echoes.remember(self.turn, "s")
        self.codec = codec

    def find(self, content=None, calls=None, handle="", name=""):
        from dressage_tito import Message

        content = self.message.content if content is None else content
        calls = self.calls if calls is None else calls
        echo = Message("assistant", content, "", tuple(calls), name=name)
        return self.echoes.find(self.tree, self.codec, echo, handle)


def reply(thinking, content, names):
    text = f"<think>\n{thinking}\n</think>\n\n" if thinking else ""
    calls = [f'<tool_call>\n{{"name": "{n}", "arguments": {{"a": "é"}}}}\n</tool_call>' for n in names]
    return "\n".join([text + content, *calls]) + "<|im_end|>"


HANDLE = turn_handle("s", 0)
CALL_NAMES = st.lists(st.sampled_from(["f", "g"]), max_size=3)


@settings(max_examples=60, deadline=None)
@given(
    thinking=st.sampled_from(["", "hm", "let me"]), content=WORDS, names=CALL_NAMES, kept=st.integers(0, 3)
)
def test_a_broken_echo_stands_for_the_longest_prefix_of_ids_that_says_the_same(
    codec, thinking, content, names, kept
):
    made = Turned(codec, reply(thinking, content, names))
    calls = made.calls[:kept]
    echo = made.find(calls=calls, handle=HANDLE)
    if len(calls) == len(made.calls):
        assert (echo.tokens, echo.cut, echo.differs) == (len(made.turn.output_ids), False, False)
        return
    assert echo.cut
    tool = {"type": "function", "function": {"name": "f"}}
    prefix = made.turn.output_ids[: echo.tokens]
    parsed = codec.parse(prefix, reasoning_open=False, finish_reason="length", tools=[tool])
    assert parsed.content.strip() == made.message.content.strip()
    assert [call.name for call in parsed.tool_calls] == [call.name for call in calls]
    longer = made.turn.output_ids[: echo.tokens + 1]
    more = codec.parse(longer, reasoning_open=False, finish_reason="length", tools=[tool])
    assert (more.content.rstrip(), len(more.tool_calls)) != (made.message.content.rstrip(), len(calls))
    assert echo.key != made.turn.reply_key, "the tree knows that it is not the turn"


@pytest.mark.parametrize(
    ("content", "calls", "handle", "found"),
    [
        (None, None, "", "whole"),
        ("something else", None, "", "differs"),
        ("something else", [], HANDLE, "differs"),
        (None, [], "", "nothing"),
        ("something else", [], "", "nothing"),
        ("something else", [], "dressage-other", "nothing"),
        (None, [], turn_handle("other session", 0), "nothing"),
    ],
)
def test_calls_come_before_the_handle_and_the_handle_before_the_text(codec, content, calls, handle, found):
    made = Turned(codec, reply("", "I look", ["f"]))
    echo = made.find(content, calls, handle)
    if found == "nothing":
        assert echo is None
        return
    assert (echo.turn, echo.tokens, echo.key) == (0, len(made.turn.output_ids), made.turn.reply_key)
    assert echo.differs is (found == "differs")


def test_a_turn_without_calls_is_known_by_its_text(codec):
    made = Turned(codec, reply("hm", "all done", []))
    assert made.find().tokens == len(made.turn.output_ids)
    assert made.find("  all done\n").key == made.turn.reply_key
    assert made.find("all") is None
    assert made.find("all", handle=HANDLE).cut


@pytest.mark.parametrize("names", [[], ["f"]])
def test_a_name_that_an_agent_signs_with_makes_it_no_other_turn(codec, names):
    made = Turned(codec, reply("hm", "all done", names))
    assert made.find(name="reviewer") == made.find()
    assert not made.find(name="reviewer").differs
    assert made.find("all", handle=HANDLE, calls=[], name="reviewer") == made.find(
        "all", handle=HANDLE, calls=[]
    )


def test_an_empty_reply_is_no_text_to_know_a_turn_by(codec):
    made = Turned(codec, "<|im_end|>")
    assert made.find() is None
    assert made.find(handle=HANDLE).tokens == 1


def test_handles_name_one_turn_of_one_session():
    handles = {turn_handle(session, turn) for session in ("a", "b") for turn in range(50)}
    assert len(handles) == 100
    assert all(handle.replace("-", "").isalnum() for handle in handles)


def test_the_beginning_of_what_was_said_in_the_same_place_is_that_turn_broken(codec):
    made = Turned(codec, reply("hm", "I look. Then I act.", ["f"]))
    from dressage_tito import Message

    for said in ("I look.", "I", "I look. Then I act."):
        message = Message("assistant", said)
        echo = made.echoes.find(made.tree, codec, message, "", lambda: [0])
        assert echo.cut
        prefix = made.turn.output_ids[: echo.tokens]
        parsed = codec.parse(
            prefix,
            reasoning_open=False,
            finish_reason="length",
            tools=[{"type": "function", "function": {"name": "f"}}],
        )
        assert parsed.content.strip() == said
    for said in ("", "look", "I look. Then I do not."):
        assert made.echoes.find(made.tree, codec, Message("assistant", said), "", lambda: [0]) is None


@pytest.mark.parametrize(("said", "kept"), [("I look. ", "I look."), ("I look at all of it.", "I look at")])
async def test_a_text_that_is_left_of_a_broken_stream_keeps_its_sampled_ids(rig, shell, call, said, kept):
    rig.script(said + (call(a=1) if kept == said.strip() else ""), "go on")
    session = await rig.open()
    await rig.chat(session, "q", tools=[shell])
    sampled = list(rig.tree(session).turn(0).output_ids)
    await rig.chat(session, "q", {"role": "assistant", "content": kept}, "it was cut off", tools=[shell])
    first, then = rig.engine.requests
    count = next(n for n in range(len(sampled), 0, -1) if rig.codec.decode(sampled[:n]).strip() == kept)
    start = len(first.input_ids)
    assert then.input_ids[: start + count] == [*first.input_ids, *sampled[:count]]
    trajectory = await rig.end(session)
    assert trajectory.lost_tokens == {"undelivered": len(sampled)}


@pytest.mark.parametrize("thought", [True, False])
@pytest.mark.parametrize(
    ("lead", "left_out"), [(["It is noon: go"], 1), (["go", "on"], 1), (["Summary"], 2), ([], 2), ([], 4)]
)
async def test_of_turns_that_said_the_same_the_one_is_meant_that_was_asked_or_thought_it(
    rig, thought, lead, left_out
):
    rig.script(*(f"<think>\nthought {number}\n</think>\n\nDone." for number in range(3)), "end")
    session = await rig.open()
    messages = ["go"]
    for number in range(3):
        said = (await rig.chat(session, *messages)).choices[0].message.model_dump(exclude_none=True)
        if not thought:
            said = {"role": "assistant", "content": said["content"]}
        messages += [said, f"on {number}"]
    await rig.chat(session, *lead, *messages[left_out:])
    tree = rig.tree(session)
    prompt = bytes(np.asarray(rig.engine.requests[-1].input_ids, np.int32))
    used = [prompt.count(bytes(tree.turn(index).output_ids)) for index in range(3)]
    assert used == {1: [1, 1, 1], 2: [0, 1, 1], 4: [0, 0, 1]}[left_out]


async def test_what_a_turn_thought_is_looked_up_once_however_many_said_the_same(rig, monkeypatch):
    rig.script(*(f"<think>\nthought {number}\n</think>\n\nDone." for number in range(20)))
    session = await rig.open()
    looked_at = []
    parse = rig.codec.parse

    def parsed(self, ids, **options):
        looked_at.append(len(ids))
        return parse(ids, **options)

    monkeypatch.setattr(type(rig.codec), "parse", parsed)
    messages = ["go"]
    for number in range(20):
        said = (await rig.chat(session, *messages)).choices[0].message.model_dump(exclude_none=True)
        messages += [{**said, "reasoning_content": "told in other words"}, f"on {number}"]
    assert len(looked_at) < 20 * 4
    assert [turn.parent for turn in rig.tree(session).turns] == list(range(-1, 19))
