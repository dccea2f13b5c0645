"""Grammars whose parameters stand between tags as raw text."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from dressage_tito import ParsedTurn

Parse = Callable[..., ParsedTurn]


def _calls(turn: ParsedTurn) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in turn.tool_calls]


def _warned(turn: ParsedTurn) -> list[str]:
    return [warning.partition(":")[0] for warning in turn.warnings]


TAGGED = {
    "qwen3_coder": (
        "<tool_call>\n<function=f>\n@</function>\n</tool_call>",
        "<parameter={}>\n{}\n</parameter>\n",
    ),
    "glm": ("<tool_call>f\n@</tool_call>", "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n"),
    "minimax_m2": (
        '<minimax:tool_call>\n<invoke name="f">\n@</invoke>\n</minimax:tool_call>',
        '<parameter name="{}">{}</parameter>\n',
    ),
    "kimi_k3": (
        '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>@<|close|>call<|sep|>'
        "<|close|>tools<|sep|>",
        '<|open|>argument key="{}" type="other"<|sep|>{}<|close|>argument<|sep|>',
    ),
    "deepseek_dsml": (
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n@</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
        '<｜DSML｜parameter name="{}" string="false">{}</｜DSML｜parameter>\n',
    ),
}


JSON_MARKED = {"deepseek_dsml", "kimi_k3"}
"""Here a parameter says whether its value is JSON."""


def _tagged(name: str, *values: tuple[str, str]) -> str:
    frame, parameter = TAGGED[name]
    return frame.replace("@", "".join(parameter.format(key, value) for key, value in values))


@pytest.mark.parametrize("name", TAGGED)
def test_raw_values_take_their_types_from_the_schema_and_keep_their_spelling(parse: Parse, name: str) -> None:
    text = _tagged(
        name,
        *(("s", "007"), ("n", "123456789012345678901234567890"), ("f", "1.50"), ("b", "True")),
        *(("o", '{"n": "7", "x": 0.10}'), ("l", "[1,  2]"), ("z", "null"), ("any", "1e3")),
    )
    turn = parse(name, text)
    null, loose = (None, 1000.0) if name in JSON_MARKED else ("null", "1e3")
    assert _calls(turn) == [
        (
            "f",
            {
                "s": "007",
                "n": 123456789012345678901234567890,
                "f": 1.5,
                "b": True,
                "o": {"n": 7, "x": 0.1},
                "l": [1, 2],
                "z": null,
                "any": loose,
            },
        )
    ]
    assert turn.tool_calls[0].arguments_text == (
        '{"s": "007", "n": 123456789012345678901234567890, "f": 1.50, "b": true, '
        '"o": {"n": "7", "x": 0.10}, "l": [1,  2], '
        + ('"z": null, "any": 1e3}' if name in JSON_MARKED else '"z": "null", "any": "1e3"}')
    )
    assert turn.warnings == ()


@pytest.mark.parametrize("name", TAGGED)
def test_a_value_that_does_not_spell_its_type_stays_text_with_a_warning(parse: Parse, name: str) -> None:
    number = () if name in JSON_MARKED else (("n", "7.5"),)  # there it is marked as a number
    for key, value in (*number, ("n", "020"), ("b", "yes"), ("o", "{"), ("l", "[NaN]"), ("f", "1e999")):
        turn = parse(name, _tagged(name, (key, value)))
        assert _calls(turn) == [("f", {key: value})]
        assert json.loads(turn.tool_calls[0].arguments_text) == {key: value}
        assert _warned(turn) == ["argument_type"]


@pytest.mark.parametrize("name", TAGGED)
def test_closing_tags_inside_a_value_are_a_part_of_it(parse: Parse, name: str) -> None:
    frame = TAGGED[name][0]
    for mark in (
        "</parameter>",
        "</arg_value>",
        "</｜DSML｜parameter>",
        "<|close|>argument<|sep|>",
        frame,
        frame.partition("@")[0],
        "</tool_call>",
    ):
        value = f"sed 's|{mark} x|'\n  {mark}."
        turn = parse(name, _tagged(name, ("s", value), ("n", "1")))
        assert _calls(turn) == [("f", {"s": value, "n": 1})], mark
        assert (turn.content, turn.warnings) == ("", ())


@pytest.mark.parametrize("name", TAGGED)
def test_a_value_without_its_closing_tag_does_not_swallow_the_next_call(parse: Parse, name: str) -> None:
    bad = _tagged(name, ("s", "x")).replace("</parameter>", "").replace("</arg_value>", "")
    bad = bad.replace("</｜DSML｜parameter>", "").replace("<|close|>argument<|sep|>", "")
    turn = parse(name, bad + "\n" + _tagged(name, ("s", "y")))
    assert _calls(turn) == [("f", {"s": "y"})]
    assert turn.content.strip() == bad
    assert _warned(turn) == ["malformed_tool_call"]
    assert parse(name, bad).tool_calls == ()


@pytest.mark.parametrize("name", TAGGED)
def test_a_cut_value_that_spells_a_whole_call_calls_nothing(parse: Parse, name: str) -> None:
    text = _tagged(name, ("s", "@")).partition("@")[0] + _tagged(name, ("s", "rm"))
    turn = parse(name, text, finish_reason="length")
    assert (turn.content, turn.tool_calls) == (text, ())
    assert _warned(turn) == ["incomplete_tool_call"]


@pytest.mark.parametrize("name", TAGGED)
def test_a_parameter_that_comes_twice_counts_as_its_last(parse: Parse, name: str) -> None:
    (call,) = parse(name, _tagged(name, ("n", "1"), ("n", "2"))).tool_calls
    assert call.arguments == {"n": 2} == json.loads(call.arguments_text)
    (call,) = parse(name, _tagged(name, ("n", "x"), ("n", "2"))).tool_calls
    assert call.arguments_text == '{"n": "x", "n": 2}'


@pytest.mark.parametrize("name", TAGGED)
def test_line_ends_and_blanks_of_a_value_are_its_own(parse: Parse, name: str) -> None:
    for value in ("", "\n", "\n\n", " a ", "\n\na\n\n", "\ta\n "):
        assert _calls(parse(name, _tagged(name, ("s", value)))) == [("f", {"s": value})]


def test_the_line_ends_between_words_and_a_call_are_the_grammar_s(parse: Parse) -> None:
    for name, between in (
        ("qwen3_coder", "\n\n"),
        ("qwen3_coder", "\n"),
        ("glm", "\n"),
        ("minimax_m2", "\n"),
    ):
        assert parse(name, "Two:" + between + _tagged(name, ("s", "x"))).content == "Two:"
    assert parse("deepseek_dsml", "Two:\n\n" + _tagged("deepseek_dsml", ("s", "x"))).content == "Two:"


@pytest.mark.parametrize("name", TAGGED)
def test_a_call_of_an_unknown_tool_is_forwarded_with_its_values_as_text(parse: Parse, name: str) -> None:
    text = _tagged(name, ("n", "1")).replace("=f>", "=g>").replace('"f"', '"g"').replace(">f\n", ">g\n")
    turn = parse(name, text)
    assert _calls(turn) == [("g", {"n": 1 if name in JSON_MARKED else "1"})]


def test_a_qwen_call_without_its_opening_tag_is_content(parse: Parse) -> None:
    text = _tagged("qwen3_coder", ("s", "x")).removeprefix("<tool_call>\n")
    turn = parse("qwen3_coder", text)
    assert (turn.content, turn.tool_calls) == (text, ())
    assert _warned(turn) == ["stray_call_mark"]


def test_an_opening_tag_that_begins_nothing_hides_no_call(parse: Parse) -> None:
    for name in ("qwen3_coder", "glm", "hermes"):
        call = '<tool_call>{"name": "f"}</tool_call>' if name == "hermes" else _tagged(name, ("s", "x"))
        turn = parse(name, f"A <tool_call> is: {{\n{call}" if name != "glm" else f"A <tool_call> <\n{call}")
        assert [call.name for call in turn.tool_calls] == ["f"]
        assert turn.content.startswith("A <tool_call>")
        assert _warned(turn) == ["malformed_tool_call"]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value></tool_call>",
        "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        "<tool_call>\nf\n<arg_key>n</arg_key>\n<arg_value>1</arg_value><arg_key>s</arg_key>\n<arg_value></arg_value>\n</tool_call>",
    ],
)
def test_glm_with_and_without_line_ends(parse: Parse, text: str) -> None:
    (call,) = parse("glm", "\n" + text).tool_calls
    assert call.arguments["n"] == 1
    assert parse("glm", "\nHi").content == "Hi"
