"""Invariants over made-up conversations of 3 to 10 turns, with random segmentations of what was sampled."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from dressage_tito import ChatCodec, Encoded, Message, Refusal, ToolCall
from dressage_tito.fuzz import TOOLS
from dressage_tito.toy import NOT_SPECIAL, SPECIAL
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Granted = Callable[[Encoded | Refusal], Encoded]

LITERALS = [*SPECIAL, *NOT_SPECIAL]
plain = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
hostile = st.lists(plain | st.sampled_from(LITERALS), max_size=5).map("".join)
clean = plain.filter(lambda text: not any(literal in text for literal in LITERALS))
relaxed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def replies(draw: st.DrawFn) -> Message:
    calls = tuple(
        ToolCall(f"c{i}", "shell", {"command": draw(clean)}, "") for i in range(draw(st.integers(0, 3)))
    )
    content = draw(clean).strip("\n")
    return Message("assistant", content, reasoning=draw(clean).strip("\n"), tool_calls=calls)


def _outside(draw: st.DrawFn, reply: Message, text: st.SearchStrategy[str]) -> list[Message]:
    results = [Message("tool", draw(text), tool_call_id=call.id) for call in reply.tool_calls]
    extra = draw(st.lists(st.sampled_from(["user", "system"]), max_size=2 if results else 1))
    messages = [*results, *(Message(role, draw(text)) for role in extra)]
    return messages or [Message("user", draw(text))]


@st.composite
def conversations(
    draw: st.DrawFn, text: st.SearchStrategy[str] = clean
) -> list[tuple[list[Message], Message]]:
    """Rounds of (what came from outside, the answer)."""
    rounds: list[tuple[list[Message], Message]] = []
    appended = [Message("user", draw(text))]
    for _ in range(draw(st.integers(3, 10))):
        reply = draw(replies())
        rounds.append((appended, reply))
        appended = _outside(draw, reply, text)
    return rounds


def _sample_text(codec: ChatCodec, history: list[Message], reply: Message) -> str:
    before = codec.reference_text(history, TOOLS)
    after = codec.reference_text([*history, reply], TOOLS, generation=False)
    assert isinstance(before, str)
    assert isinstance(after, str)
    assert after.startswith(before)
    return after[len(before) :].removesuffix("<|im_end|>\n")


def _resegmented(codec: ChatCodec, text: str, sizes: list[int]) -> list[int]:
    ids: list[int] = []
    position = 0
    for size in sizes:
        ids += codec.encode_plain(text[position : position + size])
        position += size
    return [*ids, *codec.encode_sample(text[position:])]


@given(rounds=conversations())
@relaxed
def test_p1_over_canonical_replies_the_row_is_the_full_render(
    toy: ChatCodec, granted: Granted, rounds: list[tuple[list[Message], Message]]
) -> None:
    ids: list[int] = []
    history: list[Message] = []
    for appended, reply in rounds:
        step = toy.extend(ids, appended, TOOLS) if ids else toy.start(appended, TOOLS)
        ids += granted(step).ids.tolist()
        history += appended
        assert ids == granted(toy.start(history, TOOLS)).ids.tolist()
        assert ids == toy.encode_sample(str(toy.reference_text(history, TOOLS)))
        ids += toy.encode_sample(_sample_text(toy, history, reply) + "<|im_end|>")
        history.append(reply)


@given(rounds=conversations(), data=st.data())
@relaxed
def test_p1_every_prompt_begins_with_the_ids_that_were_seen_and_sampled(
    toy: ChatCodec, granted: Granted, rounds: list[tuple[list[Message], Message]], data: st.DataObject
) -> None:
    end = list(toy.stop_token_ids)
    ids: list[int] = []
    text = ""
    history: list[Message] = []
    for appended, reply in rounds:
        before = list(ids)
        delta = granted(toy.extend(ids, appended, TOOLS) if ids else toy.start(appended, TOOLS))
        ids += delta.ids.tolist()
        assert ids[: len(before)] == before
        history += appended
        said = _sample_text(toy, history, reply)
        sampled = _resegmented(toy, said, data.draw(st.lists(st.integers(1, 4), max_size=20)))
        closed = data.draw(st.booleans())
        ids += [*sampled, *(end if closed else [])]
        history.append(reply)
        text = str(toy.reference_text(history, TOOLS, generation=False))
        # Closed or cut, the next delta brings the text to the template's own.
        rest = granted(toy.extend(ids, [Message("user", "z")], TOOLS))
        ahead = str(toy.reference_text([*history, Message("user", "z")], TOOLS))
        assert ahead.startswith(text)
        assert toy.decode([*ids, *rest.ids.tolist()]) == ahead


@given(rounds=conversations(text=hostile))
@relaxed
def test_control_ids_come_from_the_frame_alone(
    toy: ChatCodec, granted: Granted, rounds: list[tuple[list[Message], Message]]
) -> None:
    def safe(message: Message) -> Message:
        content = message.content
        while any(literal in content for literal in LITERALS):
            for literal in LITERALS:
                content = content.replace(literal, "x")
        return Message(message.role, content, message.reasoning, message.tool_calls, message.tool_call_id)

    messages = [message for appended, reply in rounds for message in (*appended, reply)]
    encoded = granted(toy.start(messages, TOOLS))
    control = np.isin(encoded.ids, list(toy.control_ids))
    assert not (control & ~encoded.frame).any()
    frame = toy.encode_sample(str(toy.reference_text([safe(message) for message in messages], TOOLS)))
    assert int(control.sum()) == sum(token in toy.control_ids for token in frame)
    contents = "".join(message.reasoning + message.content for message in messages)
    assert toy.decode(encoded.ids).count("<|im_end|>") >= contents.count("<|im_end|>")


@given(rounds=conversations())
@relaxed
def test_a_rendered_reply_parses_to_itself(
    toy: ChatCodec, rounds: list[tuple[list[Message], Message]]
) -> None:
    history: list[Message] = []
    for appended, reply in rounds:
        history += appended
        ids = toy.encode_sample(_sample_text(toy, history, reply) + "<|im_end|>")
        turn = toy.parse(ids, reasoning_open=False, finish_reason="stop", tools=TOOLS)
        calls = [(call.name, call.arguments) for call in turn.tool_calls]
        assert calls == [(call.name, call.arguments) for call in reply.tool_calls]
        expected = reply.content.lstrip("\n") if reply.reasoning else reply.content
        assert (turn.reasoning, turn.content) == (reply.reasoning, expected)
        history.append(reply)


@given(text=hostile, is_open=st.booleans(), reason=st.sampled_from(["stop", "length", "abort"]))
@relaxed
def test_no_text_makes_parse_fail_and_what_it_says_was_sampled(
    toy: ChatCodec, text: str, is_open: bool, reason: str
) -> None:
    ids = toy.encode_sample(text)
    turn = toy.parse(ids, reasoning_open=is_open, finish_reason=reason, tools=TOOLS)
    assert toy.parse(ids, reasoning_open=is_open, finish_reason=reason, tools=TOOLS) == turn
    assert turn.content in text
    assert turn.reasoning in text
    if not turn.tool_calls and not turn.reasoning and "think>" not in text:
        assert turn.content.strip() == toy.decode(ids).removesuffix("<|im_end|>").strip() or ids[-1:] != []
