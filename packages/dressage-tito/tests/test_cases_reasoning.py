"""The public failure case of reasoning, and its neighbours."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from dressage_tito import ChatCodec, Encoded, Message, ParsedTurn, Refusal
from dressage_tito.fuzz import TOOLS
from dressage_tito.toy import TEMPLATE

DRAFT = 'Let me call <tool_call>{"name":"rm"}</tool_call> maybe'


def _parse(codec: ChatCodec, text: str, *, is_open: bool, finish_reason: str = "stop") -> ParsedTurn:
    return codec.parse(
        codec.encode_sample(text), reasoning_open=is_open, finish_reason=finish_reason, tools=TOOLS
    )


@pytest.mark.parametrize("finish_reason", ["length", "abort", "stop"])
def test_c32_unclosed_thinking_is_all_reasoning_and_calls_nothing(toy: ChatCodec, finish_reason: str) -> None:
    turn = _parse(toy, DRAFT, is_open=True, finish_reason=finish_reason)
    assert (turn.reasoning, turn.content, turn.tool_calls) == (DRAFT, "", ())
    assert turn.warnings[0].startswith("unclosed_reasoning")
    turn = _parse(toy, "<think>\n" + DRAFT, is_open=False, finish_reason=finish_reason)
    assert (turn.reasoning, turn.content, turn.tool_calls) == (DRAFT, "", ())


def test_c32_with_thinking_off_all_is_content(toy: ChatCodec) -> None:
    turn = _parse(toy, "plain answer", is_open=False)
    assert (turn.reasoning, turn.content) == ("", "plain answer")
    turn = _parse(toy, DRAFT, is_open=False, finish_reason="length")
    assert turn.reasoning == ""
    assert turn.content == "Let me call  maybe"
    assert [call.name for call in turn.tool_calls] == ["rm"]


def test_c32_an_immediate_close_is_empty_reasoning(toy: ChatCodec) -> None:
    turn = _parse(toy, "</think>ok", is_open=True)
    assert (turn.reasoning, turn.content) == ("", "ok")
    turn = _parse(toy, "</think>ok", is_open=False)
    assert (turn.reasoning, turn.content) == ("", "</think>ok")


def test_c32_the_first_close_ends_reasoning_and_a_second_is_content(toy: ChatCodec) -> None:
    turn = _parse(toy, "a</think>b</think>c", is_open=True)
    assert (turn.reasoning, turn.content) == ("a", "b</think>c")


def test_c32_a_draft_in_a_later_thinking_block_is_no_call(toy: ChatCodec) -> None:
    for tail in ("", "</think>"):
        turn = _parse(toy, f"answer <think>{DRAFT}{tail}", is_open=False)
        assert turn.tool_calls == ()
        assert turn.content == f"answer <think>{DRAFT}{tail}"
        assert turn.warnings[0].startswith("reasoning_tag_in_content")


def test_c32_how_the_ids_were_split_changes_nothing(toy: ChatCodec) -> None:
    text = (
        "<think>\nhm é\n</think>\n\nyes\n" + '<tool_call>\n{"name": "shell", "arguments": {}}\n</tool_call>'
    )
    whole = _parse(toy, text, is_open=False)
    assert (whole.reasoning, whole.content, len(whole.tool_calls)) == ("hm é", "yes", 1)
    for size in (1, 2, 3, 7):
        ids = [t for i in range(0, len(text), size) for t in toy.encode_plain(text[i : i + size])]
        assert toy.parse(ids, reasoning_open=False, finish_reason="stop", tools=TOOLS) == whole


def test_c32_whether_thinking_is_open_is_read_from_the_prompts_tail(
    codec_with: Callable[..., ChatCodec], granted: Callable[[Encoded | Refusal], Encoded]
) -> None:
    codec = codec_with(
        TEMPLATE.replace("assistant\\n' }}{%- endif %}\n", "assistant\\n<think>\\n' }}{%- endif %}\n")
    )
    start = granted(codec.start([Message("user", "</think> not the frame's")]))
    assert codec.decode(start.ids).endswith("<|im_start|>assistant\n<think>\n")
    assert start.reasoning_open
    prefix = [*start.ids.tolist(), *codec.encode_sample("x</think>y<|im_end|>")]
    assert granted(codec.extend(prefix, [Message("user", "<think>")])).reasoning_open
    assert granted(codec.extend(prefix, [Message("user", "")])).reasoning_open


def test_a_model_that_writes_the_opening_tag_again_loses_no_reasoning(toy: ChatCodec) -> None:
    turn = _parse(toy, "<think>\nr\n</think>\n\nok", is_open=True)
    assert (turn.reasoning, turn.content) == ("r", "ok")


def test_a_character_over_two_ids_and_bytes_that_are_no_text(toy: ChatCodec) -> None:
    bytes_of = [toy.encode_plain("€")]
    assert len(bytes_of[0]) == 3
    turn = toy.parse(bytes_of[0], reasoning_open=False, finish_reason="stop")
    assert turn.content == "€"
    turn = toy.parse([*bytes_of[0][:2], *toy.encode_plain("a")], reasoning_open=False, finish_reason="length")
    assert turn.content.endswith("a")
    assert "\ufffd" in turn.content


def test_a_turn_without_any_id_is_an_empty_turn(toy: ChatCodec) -> None:
    assert toy.parse([], reasoning_open=False, finish_reason="abort") == ParsedTurn("")
    assert toy.parse(toy.stop_token_ids, reasoning_open=False, finish_reason="stop") == ParsedTurn("")
