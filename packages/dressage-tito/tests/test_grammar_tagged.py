"""Grammars whose parameters stand between tags as raw text."""

from __future__ import annotations

import json
import time
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


CLOSINGS = (
    "\n</parameter>",
    "</parameter>",
    "</arg_value>",
    "</｜DSML｜parameter>",
    "<|close|>argument<|sep|>",
)
"""What ends a value."""


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


@pytest.mark.parametrize("name", sorted({*TAGGED} - {"qwen3_coder"}))
def test_a_value_without_its_closing_tag_does_not_swallow_the_next_call(parse: Parse, name: str) -> None:
    bad = _tagged(name, ("s", "x"))
    for close in CLOSINGS:
        bad = bad.replace(close, "")
    turn = parse(name, bad + "\n" + _tagged(name, ("s", "y")))
    assert _calls(turn) == [("f", {"s": "y"})]
    assert turn.content.strip() == bad
    assert _warned(turn) == ["malformed_tool_call"]
    assert parse(name, bad).tool_calls == ()


@pytest.mark.parametrize("between", ["\n", "\nNow the other one <b>.\n", " "])
@pytest.mark.parametrize("name", TAGGED)
def test_a_value_without_its_closing_tag_swallows_no_call_that_gives_another_parameter(
    parse: Parse, name: str, between: str
) -> None:
    """The first call's tool takes the second's parameter too, and words may stand between the two."""
    bad = _tagged(name, ("s", "x"))
    for close in CLOSINGS:
        bad = bad.replace(close, "")
    turn = parse(name, bad + between + _tagged(name, ("any", "y")))
    if name == "qwen3_coder":
        assert _calls(turn) == [("f", {"s": "x"}), ("f", {"any": "y"})]
        assert _warned(turn) == ["unclosed_parameter"]
        assert turn.content == between.strip()
    else:
        assert _calls(turn) == [("f", {"any": "y"})]
        assert _warned(turn) == ["malformed_tool_call"]
        assert turn.content.strip() == (bad + between).strip()


@pytest.mark.parametrize("name", TAGGED)
def test_a_value_that_speaks_of_calls_keeps_all_of_it(parse: Parse, name: str) -> None:
    """A tail before a call's head alone, and a tail between two openings of calls with a parameter."""
    head, _, tail = TAGGED[name][0].replace("\n", " ").partition("@")
    opened = head + TAGGED[name][1].replace("\n", " ").format("any", "@").partition("@")[0]
    for value in (f"{tail} ends and {head} begins", f"{opened} y {tail} and {opened} z"):
        turn = parse(name, _tagged(name, ("s", value)))
        assert _calls(turn) == [("f", {"s": value})]
        assert turn.warnings == ()


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


QWEN = {
    "two functions in one block": (
        "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n"
        "<function=g>\n<parameter=a>\ny\n</parameter>\n</function>\n</tool_call>",
        [("f", {"s": "x"}), ("g", {"a": "y"})],
        [],
    ),
    "a function without parameters after one with": (
        "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n"
        "<function=g>\n</function>\n</tool_call>",
        [("f", {"s": "x"}), ("g", {})],
        [],
    ),
    "no end of a parameter in the middle": (
        "<tool_call>\n<function=f>\n<parameter=s>\nx\n<parameter=n>\n7\n</parameter>\n</function>\n</tool_call>",
        [("f", {"s": "x", "n": 7})],
        ["unclosed_parameter"],
    ),
    "no end of the last parameter": (
        "<tool_call>\n<function=f>\n<parameter=n>\n7\n</parameter>\n<parameter=s>\nx\n</function>\n</tool_call>",
        [("f", {"n": 7, "s": "x"})],
        ["unclosed_parameter"],
    ),
    "no end of the last parameter before another function": (
        "<tool_call>\n<function=f>\n<parameter=s>\nx\n</function>\n"
        "<function=g>\n<parameter=n>\ny\n</parameter>\n</function>\n</tool_call>",
        [("f", {"s": "x"}), ("g", {"n": "y"})],
        ["unclosed_parameter"],
    ),
    "no end of the function": (
        "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</tool_call>",
        [("f", {"s": "x"})],
        ["unclosed_function"],
    ),
    "no end of the block": (
        "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>",
        [("f", {"s": "x"})],
        ["unclosed_tool_call"],
    ),
}


@pytest.mark.parametrize("case", QWEN)
def test_qwen_s_calls_with_a_missing_tag_or_several_in_a_block_are_told_apart(
    parse: Parse, case: str
) -> None:
    """As the family's own parser reads them."""
    text, calls, warned = QWEN[case]
    turn = parse("qwen3_coder", text)
    assert _calls(turn) == calls
    assert (turn.content, _warned(turn)) == ("", warned)
    seed = text.replace("tool_call>", "seed:tool_call>").replace(">\n", ">").replace("\n<", "<")
    if not case.startswith(("no end of a parameter", "no end of the last parameter")):
        assert _calls(parse("seed_oss", seed)) == calls
    if warned:
        cut = parse("qwen3_coder", text.removesuffix("</tool_call>"), finish_reason="length")
        assert cut.tool_calls == ()


@pytest.mark.parametrize("name", ["qwen3_coder", "glm", "minimax_m2", "deepseek_dsml"])
def test_a_value_without_its_closing_tag_swallows_no_other_parameter(parse: Parse, name: str) -> None:
    whole = _tagged(name, ("s", "x"), ("n", "7"))
    close = {"glm": "</arg_value>", "deepseek_dsml": "</｜DSML｜parameter>"}.get(name, "</parameter>")
    turn = parse(name, whole.replace(f"\n{close}" if name == "qwen3_coder" else close, "", 1))
    assert _calls(turn) == [("f", {"s": "x", "n": 7})]
    assert _warned(turn) == ["unclosed_parameter"]
    # What a tool does not take, a parameter that was given, or a whole one is a part of the value.
    opening = TAGGED[name][1].partition("{}")[0]
    for value in (
        f"x\n{opening.format()}other{TAGGED[name][1].split('{}')[1]}y",
        f"x\n{TAGGED[name][1].format('s', 'y').removesuffix(chr(10)).replace(close, '')}",
        f"x\n{TAGGED[name][1].format('n', '1')}y",
    ):
        turn = parse(name, _tagged(name, ("s", value)))
        assert _calls(turn) == [("f", {"s": value})]
        assert turn.warnings == ()


@pytest.mark.parametrize("name", ["qwen3_coder", "minimax_m2", "deepseek_dsml"])
def test_python_s_objects_and_lists_are_values_where_the_schema_asks_for_them(
    parse: Parse, name: str
) -> None:
    values = (("o", "{'n': 1, \"k\": 'it\\'s', 'z': None}"), ("l", "[1, 2,]"), ("s", "['a']"))
    text = _tagged(name, *values).replace('name="s" string="false"', 'name="s" string="true"')
    turn = parse(name, text)
    arguments = {"o": {"n": 1, "k": "it's", "z": None}, "l": [1, 2], "s": "['a']"}
    assert _calls(turn) == [("f", arguments)]
    assert json.loads(turn.tool_calls[0].arguments_text) == arguments
    assert turn.warnings == ()
    for odd in ("{'n': open('x')}", "{'n': 1", "{1: 2}", "{'n': 1} + {}", "{'n': 1e999}"):
        turn = parse(name, _tagged(name, ("o", odd)))
        assert _calls(turn) == [("f", {"o": odd})]
        assert _warned(turn) == ["argument_type"]


HEADS = {
    "qwen3_coder": ("<tool_call>\n<function=f>\n", "</function>\n</tool_call>"),
    "seed_oss": ("<seed:tool_call>\n<function=f>\n", "</function>\n</seed:tool_call>"),
    "glm": ("<tool_call>f\n", "</tool_call>"),
    "minimax_m2": ('<minimax:tool_call>\n<invoke name="f">\n', "</invoke>"),
    "deepseek_dsml": ('<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n', "</｜DSML｜invoke>"),
    "kimi_k3": ('<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>', "<|close|>call<|sep|>"),
    "hunyuan3": (
        "<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>",
        "</tool_call:opensource>",
    ),
    "minimax_m3": (
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="f">',
        "]<]minimax[>[</invoke>",
    ),
    "minicpm5": ('<function name="f">', "</function>"),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_tool_s_name_alone_is_no_call_before_it_is_closed(parse: Parse, name: str) -> None:
    """A turn that tells how a call begins may end there."""
    head, close = HEADS[name]
    assert _calls(parse(name, head + close)) == [("f", {})]
    for end in ("", "\n", " \n"):
        text = f"A call begins with {head.rstrip()}{end}"
        turn = parse(name, text)
        assert (turn.content, turn.tool_calls) == (text, ())
        assert "incomplete_tool_call" in _warned(turn)


@pytest.mark.parametrize("name", TAGGED)
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_calls_whose_values_never_end_are_read_in_linear_time(parse: Parse, name: str, reason: str) -> None:
    """As a model writes them that goes round in circles."""
    frame, parameter = TAGGED[name]
    call = frame.replace("@", "\n" + parameter.rpartition("{}")[0].format("other") + "x\n")
    for unit in (call, f"{call}\nx\n"):
        start = time.process_time()
        parse(name, unit * (1_000_000 // len(unit)), finish_reason=reason)
        # Linear work takes a fraction of a second, quadratic work most of a minute.
        assert time.process_time() - start < 10
