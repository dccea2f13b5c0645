"""The public failure case of reasoning, and its neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from dressage_tito import ChatCodec, Encoded, Message, ParsedTurn, Refusal
from dressage_tito.fuzz import TOOLS
from dressage_tito.grammars import REASONING_TAGS
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


TAGS = pytest.mark.parametrize("tags", REASONING_TAGS, ids=lambda tags: tags[0].strip("<|>[]\n"))


def _with_tags(codec: ChatCodec, tags: tuple[str, str]) -> ChatCodec:
    return codec.with_profile(replace(codec.profile, reasoning_tags=tags))


@TAGS
@pytest.mark.parametrize("finish_reason", ["length", "abort", "stop"])
def test_c32_unclosed_thinking_is_all_reasoning_under_every_family_s_tags(
    toy: ChatCodec, tags: tuple[str, str], finish_reason: str
) -> None:
    codec = _with_tags(toy, tags)
    for text, is_open in ((DRAFT, True), (tags[0] + DRAFT, False), (tags[0] + DRAFT, True)):
        turn = _parse(codec, text, is_open=is_open, finish_reason=finish_reason)
        assert (turn.reasoning, turn.content, turn.tool_calls) == (DRAFT, "", ())
        assert turn.warnings[0].startswith("unclosed_reasoning")


@TAGS
def test_c32_what_follows_the_first_close_is_the_answer(toy: ChatCodec, tags: tuple[str, str]) -> None:
    opening, closing = tags
    codec = _with_tags(toy, tags)
    call = '<tool_call>\n{"name": "shell", "arguments": {}}\n</tool_call>'
    for block, is_open in ((f"{opening}{DRAFT}{closing}", False), (f"{DRAFT}{closing}", True)):
        turn = _parse(codec, f"{block}\n\nok {closing} é\n{call}", is_open=is_open)
        assert (turn.reasoning, turn.content) == (DRAFT, f"ok {closing} é")
        assert [found.name for found in turn.tool_calls] == ["shell"]
    turn = _parse(codec, f"{closing}ok", is_open=True)
    assert (turn.reasoning, turn.content) == ("", "ok")
    turn = _parse(codec, f"{opening}\n\n{closing}\n\nok", is_open=False)
    assert (turn.reasoning, turn.content) == ("", "ok")


@TAGS
def test_c32_the_output_alone_never_decides_that_thinking_was_open(
    toy: ChatCodec, tags: tuple[str, str]
) -> None:
    codec = _with_tags(toy, tags)
    turn = _parse(codec, f"hm {tags[1]} ok", is_open=False)
    assert (turn.reasoning, turn.content) == ("", f"hm {tags[1]} ok")
    turn = _parse(codec, f"answer {tags[0]}{DRAFT}", is_open=False)
    assert (turn.reasoning, turn.tool_calls) == ("", ())
    assert turn.content == f"answer {tags[0]}{DRAFT}"


@TAGS
def test_c32_under_every_family_s_tags_the_split_changes_nothing(
    toy: ChatCodec, tags: tuple[str, str]
) -> None:
    codec = _with_tags(toy, tags)
    text = f"{tags[0]}hm é 👩‍👩‍👧{tags[1]}\nyes"
    for size in (1, 2, 3, 7):
        ids = [t for i in range(0, len(text), size) for t in toy.encode_plain(text[i : i + size])]
        turn = codec.parse(ids, reasoning_open=False, finish_reason="stop", tools=TOOLS)
        assert (turn.reasoning, turn.content) == ("hm é 👩‍👩‍👧", "yes")


@pytest.mark.parametrize("finish_reason", ["length", "abort", "stop"])
def test_c32_a_harmony_analysis_that_was_cut_is_all_reasoning(toy: ChatCodec, finish_reason: str) -> None:
    codec = toy.with_profile(replace(toy.profile, reasoning_tags=None, tool_grammar="harmony"))
    draft = 'Let me call to=functions.rm {"a": 1} maybe'
    turn = _parse(codec, f"<|channel|>analysis<|message|>{draft}", is_open=False, finish_reason=finish_reason)
    assert (turn.reasoning, turn.content, turn.tool_calls) == (draft, "", ())
    assert turn.warnings[0].startswith("unclosed_reasoning")
    turn = _parse(codec, "<|channel|>final<|message|>ok", is_open=False, finish_reason=finish_reason)
    assert (turn.reasoning, turn.content, turn.warnings) == ("", "ok", ())
