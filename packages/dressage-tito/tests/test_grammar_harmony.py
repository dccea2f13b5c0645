"""gpt-oss's turns: channels and recipients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from dressage_tito import ParsedTurn

Parse = Callable[..., ParsedTurn]


def _calls(turn: ParsedTurn) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in turn.tool_calls]


def _warned(turn: ParsedTurn) -> list[str]:
    return [warning.partition(":")[0] for warning in turn.warnings]


@pytest.mark.parametrize(
    ("head", "name"),
    [
        ("<|channel|>commentary to=functions.f <|constrain|>json<|message|>", "f"),
        (" to=functions.f<|channel|>commentary json<|message|>", "f"),
        ("<|channel|>analysis to=functions.f code<|message|>", "f"),
        ("<|channel|>commentary to=browser.search<|message|>", "browser.search"),
        (" to=functions.mcp.x<|channel|>commentary<|message|>", "mcp.x"),
    ],
)
@pytest.mark.parametrize("end", ["<|call|>", "<|end|>", ""])
def test_a_harmony_message_with_a_recipient_is_a_call(parse: Parse, head: str, name: str, end: str) -> None:
    text = "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant" + head
    turn = parse("harmony", text + '{"s": "<|end|> <|call|>"}' + end)
    assert _calls(turn) == [(name, {"s": "<|end|> <|call|>"})]
    assert (turn.reasoning, turn.content, turn.warnings) == ("Think.", "", ())


def test_harmony_channels(parse: Parse) -> None:
    text = (
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I will look.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Done é.<|return|>"
    )
    turn = parse("harmony", text)
    assert (turn.reasoning, turn.content, turn.warnings) == ("One.\nTwo.", "I will look.\nDone é.", ())
    assert parse("harmony", text.removesuffix("<|return|>"), tools=None).content == "I will look.\nDone é."


def test_a_harmony_turn_that_was_cut_calls_nothing(parse: Parse) -> None:
    head = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
    for text in (head + '{"n": 1', head + '{"n": 1}', head[:-4], head):
        turn = parse("harmony", text, finish_reason="length")
        assert (turn.content, turn.tool_calls) == (text, ())
        assert turn.warnings
    turn = parse("harmony", f"<|channel|>analysis<|message|>I call {head}", finish_reason="length")
    assert turn.tool_calls == ()


def test_harmony_text_without_a_header_is_content(parse: Parse) -> None:
    for text in ("plain words", "words <|message|> more", "<|start|>user<|message|>no"):
        turn = parse("harmony", text)
        assert (turn.content, turn.reasoning, turn.tool_calls) == (text, "", ())
        assert _warned(turn) == ["malformed_message"]
