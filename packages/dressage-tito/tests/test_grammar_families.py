"""What is particular to one family's grammar."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from dressage_tito import ParsedTurn
from dressage_tito.grammars import GRAMMARS, REASONING_TAGS, grammar_named

THINK = ("<think>", "</think>")
SCHEMA = {
    "type": "object",
    "properties": {
        "s": {"type": "string"},
        "n": {"type": "integer"},
        "f": {"type": "number"},
        "b": {"type": "boolean"},
        "o": {"type": "object", "properties": {"n": {"type": "integer"}}},
        "l": {"type": "array", "items": {"type": "integer"}},
        "z": {"type": ["string", "null"]},
        "any": {},
    },
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
Parse = Callable[..., ParsedTurn]


@pytest.fixture
def parse() -> Parse:
    def run(name: str, text: str, **options: Any) -> ParsedTurn:
        given = {
            "reasoning_open": False,
            "finish_reason": "stop",
            "tools": TOOLS,
            "reasoning_tags": None if name == "harmony" else THINK,
            **options,
        }
        return grammar_named(name).parse(text, **given)  # type: ignore[arg-type]

    return run


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
    "deepseek_dsml": (
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n@</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
        '<｜DSML｜parameter name="{}" string="false">{}</｜DSML｜parameter>\n',
    ),
}


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
    null, loose = (None, 1000.0) if name == "deepseek_dsml" else ("null", "1e3")
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
        + ('"z": null, "any": 1e3}' if name == "deepseek_dsml" else '"z": "null", "any": "1e3"}')
    )
    assert turn.warnings == ()


@pytest.mark.parametrize("name", TAGGED)
def test_a_value_that_does_not_spell_its_type_stays_text_with_a_warning(parse: Parse, name: str) -> None:
    number = () if name == "deepseek_dsml" else (("n", "7.5"),)  # there it is marked as a number
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
        frame,
        frame.partition("@")[0],
        "</tool_call>",
    ):
        value = f"sed 's|{mark} x|'\n  {mark}."
        turn = parse(name, _tagged(name, ("s", value), ("n", "1")))
        assert _calls(turn) == [("f", {"s": value, "n": 1})], mark
        assert (turn.content, turn.warnings) == ("", ())


@pytest.mark.parametrize("name", TAGGED)
def test_a_parameter_that_comes_twice_counts_as_its_last(parse: Parse, name: str) -> None:
    (call,) = parse(name, _tagged(name, ("n", "1"), ("n", "2"))).tool_calls
    assert call.arguments == {"n": 2} == json.loads(call.arguments_text)


@pytest.mark.parametrize("name", TAGGED)
def test_a_call_of_an_unknown_tool_is_forwarded_with_its_values_as_text(parse: Parse, name: str) -> None:
    text = _tagged(name, ("n", "1")).replace("=f>", "=g>").replace('"f"', '"g"').replace(">f\n", ">g\n")
    turn = parse(name, text)
    assert _calls(turn) == [("g", {"n": 1 if name == "deepseek_dsml" else "1"})]


SECTIONS = {
    "minimax_m2": ("<minimax:tool_call>", '<invoke name="{}"></invoke>', "</minimax:tool_call>"),
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{{}}\n```<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek_v3_1": (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{{}}<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "kimi_k2": (
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>functions.{}:0<|tool_call_argument_begin|>{{}}<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ),
}


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_that_was_cut_keeps_its_whole_calls_and_its_rest_as_content(
    parse: Parse, name: str
) -> None:
    begin, call, _ = SECTIONS[name]
    rest = call.format("h")[:-4]
    turn = parse(name, begin + call.format("f") + call.format("g") + rest, finish_reason="length")
    assert [call.name for call in turn.tool_calls] == ["f", "g"]
    assert turn.content == rest
    assert _warned(turn) == ["incomplete_tool_call"]


@pytest.mark.parametrize("name", SECTIONS)
def test_a_call_outside_of_a_section_is_content(parse: Parse, name: str) -> None:
    begin, call, end = SECTIONS[name]
    one, two = call.format("f"), call.format("g")
    for text, content in (
        (one, one),
        (f"{begin}{one}{end}x{two}", f"x{two}"),
        (f"{begin}{one}x{end}{two}", None),
    ):
        turn = parse(name, text)
        assert [call.name for call in turn.tool_calls] == (["f"] if begin in text else [])
        assert _warned(turn) == ["stray_call_mark"]
        assert turn.content == (f"x{end}{two}" if content is None else content)


@pytest.mark.parametrize("name", SECTIONS)
def test_a_bad_call_in_a_section_stays_content_and_the_next_is_called(parse: Parse, name: str) -> None:
    begin, call, end = SECTIONS[name]
    bad = (
        call.format("f").replace("f", "f {", 1) if name != "minimax_m2" else '<invoke name="f">oops</invoke>'
    )
    turn = parse(name, begin + bad + call.format("g") + end)
    assert [call.name for call in turn.tool_calls] == ["g"]
    assert turn.content == begin + bad
    assert _warned(turn) == ["malformed_tool_call"]


def test_kimi_s_id_is_kept_as_it_was_sampled(parse: Parse) -> None:
    begin, call, end = SECTIONS["kimi_k2"]
    for call_id, name in (("functions.mcp.read:12", "mcp.read"), ("functions.f", "f"), ("f:3", "f")):
        (found,) = parse(
            "kimi_k2", begin + call.format("@").replace("functions.@:0", call_id) + end
        ).tool_calls
        assert (found.id, found.name) == (call_id, name)
    assert GRAMMARS["kimi_k2"].call_id("f", 2) == "functions.f:2"


def test_mistral_s_list_and_its_later_form_carry_ids(parse: Parse) -> None:
    first = '{"name": "f", "arguments": {"n": 1}, "id": "abc123XYZ"}'
    text = f'[TOOL_CALLS] [{first}, {{"name": "g", "arguments": {{}}}}]'
    turn = parse("mistral", text)
    assert [(call.id, call.name, call.arguments) for call in turn.tool_calls] == [
        ("abc123XYZ", "f", {"n": 1}),
        ("", "g", {}),
    ]
    turn = parse("mistral", 'Hm.[TOOL_CALLS]f[CALL_ID]abc123XYZ[ARGS]{"s": "[TOOL_CALLS]g[ARGS]{}"}')
    assert [(call.id, call.name) for call in turn.tool_calls] == [("abc123XYZ", "f")]
    assert turn.content == "Hm."


def test_mistral_s_last_call_has_no_end_but_the_turn_s(parse: Parse) -> None:
    text = "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{}"
    assert len(parse("mistral", text).tool_calls) == 2
    turn = parse("mistral", text, finish_reason="length")
    assert [call.name for call in turn.tool_calls] == ["f"]
    assert turn.content == "[TOOL_CALLS]g[ARGS]{}"


def test_nothing_inside_a_cut_call_is_called(parse: Parse) -> None:
    """A string that was cut may spell a whole call of the same grammar."""
    inner = "[TOOL_CALLS]rm[ARGS]{}"
    assert parse("mistral", '[TOOL_CALLS]f[ARGS]{"s": "' + inner, finish_reason="length").tool_calls == ()
    begin, call, _ = SECTIONS["kimi_k2"]
    cut = call.format("f").partition("{}")[0] + '{"s": "<|tool_call_end|>' + call.format("rm")
    turn = parse("kimi_k2", begin + cut, finish_reason="length")
    assert (turn.tool_calls, turn.content) == ((), begin + cut)
    cut = _tagged("qwen3_coder", ("s", "x")).partition("x\n")[0] + _tagged("qwen3_coder", ("s", "rm"))
    assert _calls(parse("qwen3_coder", cut[:-12], finish_reason="length")) == []


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Bob", "age": 3}',
        '{"name": "f"}',
        '{"a": 1}',
        "{",
        '{"name": "f", "parameters": {}, "x": 1}',
    ],
)
def test_a_llama_answer_in_json_is_no_call(parse: Parse, text: str) -> None:
    turn = parse("llama3_json", text)
    assert (turn.content, turn.tool_calls) == (text, ())


def test_llama_calls_fill_the_turn(parse: Parse) -> None:
    one = '{"name": "f", "parameters": {"n": "1"}}'
    assert _calls(parse("llama3_json", f"<|python_tag|>{one}; {one}\n")) == [("f", {"n": 1})] * 2
    assert _calls(parse("llama3_json", '{"type": "function", "name": "f", "parameters": {}}')) == [("f", {})]
    turn = parse("llama3_json", f"So:<|python_tag|>{one}")
    assert (turn.content, len(turn.tool_calls)) == ("So:", 1)
    for text in (f"{one} and more", f"<|python_tag|>print({one})", one[:-1]):
        turn = parse("llama3_json", text)
        assert (turn.content, turn.tool_calls) == (text, ())
        assert turn.warnings
    assert parse("llama3_json", one, finish_reason="length").tool_calls == ()
    text = '{"name": "f", "parameters": {"s": "a <|python_tag|> b"}}'
    assert _calls(parse("llama3_json", text)) == [("f", {"s": "a <|python_tag|> b"})]


def test_lfm2_calls_are_python(parse: Parse) -> None:
    text = "[f(s='it\\'s \\\\ \\u00e9\\n', n=-1, f=2.50, b=True, z=None, o={'n': [1, 'a']}, l=[1]), g()]"
    turn = parse("lfm2", f"Ok.<|tool_call_start|>{text}<|tool_call_end|>")
    assert _calls(turn) == [
        (
            "f",
            {"s": "it's \\ é\n", "n": -1, "f": 2.5, "b": True, "z": None, "o": {"n": [1, "a"]}, "l": [1]},
        ),
        ("g", {}),
    ]
    assert '"f": 2.50' in turn.tool_calls[0].arguments_text
    assert json.loads(turn.tool_calls[0].arguments_text) == turn.tool_calls[0].arguments
    turn = parse("lfm2", "<|tool_call_start|>[f(s='it's \"raw\"\nand', n=1)]<|tool_call_end|>")
    assert _calls(turn) == [("f", {"s": 'it\'s "raw"\nand', "n": 1})]
    turn = parse("lfm2", '<|tool_call_start|>[{"name": "f", "arguments": {"n": 1}}]<|tool_call_end|>')
    assert _calls(turn) == [("f", {"n": 1})]


@pytest.mark.parametrize(
    "body", ["f(1)", "[f(1)]", "[f(a=open('x'))]", "[f(a=1)", "[f(a='x)]", "[]", "[f(a=1 b=2)]"]
)
def test_lfm2_text_that_is_no_call_with_literals_stays_content(parse: Parse, body: str) -> None:
    text = f"<|tool_call_start|>{body}<|tool_call_end|>"
    turn = parse("lfm2", text)
    assert (turn.content, turn.tool_calls) == (text, ())
    assert turn.warnings


def test_gemma_values_are_typed_by_their_marks(parse: Parse) -> None:
    text = 'call:f{s:<|"|>a,"b"}<tool_call|><|"|>,n:10000000000000000000000,f:1.50'
    text += ',o:{<|"|>n<|"|>:1,x:[]},z:null}'
    turn = parse("gemma4", f"<|tool_call>{text}<tool_call|>Done.")
    arguments = {"s": 'a,"b"}<tool_call|>', "n": 10**22, "f": 1.5, "o": {"n": 1, "x": []}, "z": None}
    assert _calls(turn) == [("f", arguments)]
    assert '"f": 1.50' in turn.tool_calls[0].arguments_text
    assert json.loads(turn.tool_calls[0].arguments_text) == arguments
    assert turn.content == "Done."


@pytest.mark.parametrize(
    "body",
    [
        "call:f{s:bare}",
        "call:f{s:1",
        "f{s:1}",
        "call:f{s:1,}",
        'call:f{s:<|"|>x}',
        "call:f{1}",
        "call:f" + "{a:" * 5000,
    ],
)
def test_gemma_text_that_is_no_call_stays_content(parse: Parse, body: str) -> None:
    text = f"<|tool_call>{body}<tool_call|>"
    turn = parse("gemma4", text)
    assert (turn.content, turn.tool_calls) == (text, ())
    assert turn.warnings


def test_cohere_blocks(parse: Parse) -> None:
    tags = REASONING_TAGS[2]
    call = '{"tool_call_id": "0", "tool_name": "f", "parameters": {"n": "1"}}'
    action = f"<|START_ACTION|>[\n    {call}\n]<|END_ACTION|>"
    turn = parse("cohere", f"<|START_THINKING|>Plan.<|END_THINKING|>{action}", reasoning_tags=tags)
    assert [(call.id, call.name, call.arguments) for call in turn.tool_calls] == [("0", "f", {"n": 1})]
    assert (turn.content, turn.reasoning) == ("", "Plan.")
    for text in (
        "<|START_RESPONSE|>Hi.<|END_RESPONSE|>",
        "<|START_RESPONSE|>Hi.",
        "Hi.<|END_RESPONSE|>",
        "Hi.",
    ):
        assert parse("cohere", text, reasoning_tags=tags).content == "Hi."


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
    assert (turn.reasoning, turn.content, turn.warnings) == ("One.\nTwo.", "I will look.Done é.", ())
    assert parse("harmony", text.removesuffix("<|return|>"), tools=None).content == "I will look.Done é."


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
