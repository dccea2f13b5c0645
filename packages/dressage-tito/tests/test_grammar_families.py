"""What is particular to one family's grammar."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from dressage_tito import ParsedTurn
from dressage_tito.grammars import GRAMMARS, REASONING_TAGS

pytestmark = pytest.mark.heavy

Parse = Callable[..., ParsedTurn]


def _calls(turn: ParsedTurn) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in turn.tool_calls]


def _warned(turn: ParsedTurn) -> list[str]:
    return [warning.partition(":")[0] for warning in turn.warnings]


SECTIONS = {
    "kimi_k3": (
        "<|open|>tools<|sep|>",
        '<|open|>call tool="{}" index="1"<|sep|><|close|>call<|sep|>',
        "<|close|>tools<|sep|>",
    ),
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
    one = call.format("f")
    close = {"minimax_m2": "</invoke>", "kimi_k3": "<|close|>call<|sep|>"}.get(name, "{}")
    bad = one.replace(close, f"oops{close}", 1)
    turn = parse(name, begin + bad + call.format("g") + end)
    assert [call.name for call in turn.tool_calls] == ["g"]
    assert turn.content == begin + bad
    assert _warned(turn) == ["malformed_tool_call"]


def test_deepseek_v3_s_json_is_fenced(parse: Parse) -> None:
    begin, call, end = SECTIONS["deepseek_v3"]
    for good, bad in (("\n```<", "\nabc<"), ("```json", "``json"), ("{}", ""), ("{}", "[]")):
        turn = parse("deepseek_v3", begin + call.format("f").replace(good, bad) + end)
        assert turn.tool_calls == ()
        assert _warned(turn) == ["malformed_tool_call"]


def test_a_line_end_before_a_section_is_the_model_s_own(parse: Parse) -> None:
    begin, call, end = SECTIONS["kimi_k2"]
    assert parse("kimi_k2", "Two:\n" + begin + call.format("f") + end).content == "Two:\n"


def test_kimi_s_id_is_kept_as_it_was_sampled(parse: Parse) -> None:
    begin, call, end = SECTIONS["kimi_k2"]
    for call_id, name in (
        *(("functions.mcp.read:12", "mcp.read"), ("functions.f", "f"), ("f:3", "f")),
        *(("functions.ns:f:3", "ns:f"), ("functions.ns:f", "ns:f"), ("functions.f:03:4", "f:03")),
    ):
        (found,) = parse(
            "kimi_k2", begin + call.format("@").replace("functions.@:0", call_id) + end
        ).tool_calls
        assert (found.id, found.name) == (call_id, name)
    assert GRAMMARS["kimi_k2"].call_id("f", 2) == "functions.f:2"


def test_a_kimi_id_that_was_made_fit_for_other_rules_names_the_offered_tool(parse: Parse) -> None:
    begin, call, end = SECTIONS["kimi_k2"]
    for call_id, name in (
        *(("functions_f_0", "f"), ("functionsf0", "f"), ("functions_f:3", "f"), ("functionsf", "f")),
        *(("functions_g_0", "functions_g_0"), ("f2:0", "f2"), ("f_0:0", "f_0"), ("call_0", "call_0")),
    ):
        (found,) = parse(
            "kimi_k2", begin + call.format("@").replace("functions.@:0", call_id) + end
        ).tool_calls
        assert (found.id, found.name) == (call_id, name)


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
    for more in ("", " and", " and]"):
        text = '[TOOL_CALLS]f[ARGS]{"s": "' + inner + more
        turn = parse("mistral", text, finish_reason="length")
        assert (turn.content, turn.tool_calls) == (text, ())
    begin, call, _ = SECTIONS["kimi_k2"]
    cut = call.format("f").partition("{}")[0] + '{"s": "<|tool_call_end|>' + call.format("rm")
    turn = parse("kimi_k2", begin + cut, finish_reason="length")
    assert (turn.tool_calls, turn.content) == ((), begin + cut)


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
    for text in (f"{one}\n{one}", f"{one}{one}", f"<|python_tag|>{one} ; {one}"):
        assert _calls(parse("llama3_json", text)) == [("f", {"n": 1})] * 2
    assert _calls(parse("llama3_json", '{"parameters": {"n": "1"}, "name": "f"}')) == [("f", {"n": 1})]
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


def test_lfm2_literals_are_as_python_reads_them(parse: Parse) -> None:
    for written, value in (
        *(("'''a\n'b' c'''", "a\n'b' c"), ('"""x"""', "x"), ("r'a\\d'", "a\\d"), ("''", "")),
        *(("(1, 2)", [1, 2]), ("(1,)", [1]), ("(1)", 1), ("()", []), ("[(1, 'a'),]", [[1, "a"]])),
    ):
        for text in (f"[f(any={written})]", f"[f(any={written},),]", f"[f(n=1, any={written}), g()]"):
            turn = parse("lfm2", f"<|tool_call_start|>{text}<|tool_call_end|>")
            assert turn.tool_calls[0].arguments["any"] == value
            assert json.loads(turn.tool_calls[0].arguments_text)["any"] == value


def test_lfm2_escapes_that_spell_no_character_stay_as_they_are(parse: Parse) -> None:
    for text, value in (
        ("\\ud83d", "\\ud83d"),
        ("\\U00110000", "\\U00110000"),
        ("\\d\\x4", "\\d\\x4"),
        ("\\x41", "A"),
    ):
        (call,) = parse("lfm2", f"<|tool_call_start|>[f(s='{text}')]<|tool_call_end|>").tool_calls
        assert call.arguments == {"s": value}
        assert json.loads(call.arguments_text.encode()) == {"s": value}


@pytest.mark.parametrize(
    "body",
    ["f(1)", "[f(1)]", "[f(a=open('x'))]", "[f(a=1)", "[f(a='x)]", "[]", "[f(a=1 b=2)]", "[f(a=1e999)]"],
)
def test_lfm2_text_that_is_no_call_with_literals_stays_content(parse: Parse, body: str) -> None:
    text = f"<|tool_call_start|>{body}<|tool_call_end|>"
    turn = parse("lfm2", text)
    assert (turn.content, turn.tool_calls) == (text, ())
    assert turn.warnings


@pytest.mark.parametrize("value", ["1e999", "-1e999", "[1,{a:1e999}]"])
def test_gemma_numbers_that_json_cannot_write_are_no_values(parse: Parse, value: str) -> None:
    text = f"<|tool_call>call:f{{any:{value}}}<tool_call|>"
    turn = parse("gemma4", text)
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
    for text in ('say <|"|>hi<|"|> now', '<|"|>', '"'):
        assert _calls(parse("gemma4", f'<|tool_call>call:f{{s:<|"|>{text}<|"|>}}<tool_call|>')) == [
            ("f", {"s": text})
        ]


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


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        (
            "gemma4",
            '<|tool_call>call:f{s:<|"|>x}<tool_call|>',
            '<|tool_call>call:g{s:<|"|>y<|"|>}<tool_call|>',
        ),
        (
            "lfm2",
            "<|tool_call_start|>[f(s='don't)]<|tool_call_end|>",
            "<|tool_call_start|>[g(s='y')]<|tool_call_end|>",
        ),
        (
            "lfm2",
            "<|tool_call_start|>[f(s='x)]<|tool_call_end|>",
            "<|tool_call_start|>[g(s=1)]<|tool_call_end|>",
        ),
    ],
)
def test_a_text_without_its_closing_quote_does_not_swallow_the_next_call(
    parse: Parse, name: str, bad: str, good: str
) -> None:
    turn = parse(name, bad + good)
    assert [call.name for call in turn.tool_calls] == ["g"]
    assert turn.content == bad
    assert _warned(turn)[0] == "malformed_tool_call"
    assert parse(name, bad).tool_calls == ()


def test_deepseek_s_arguments_may_be_a_json_object_in_the_parameters_place(parse: Parse) -> None:
    frame = '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">@</｜DSML｜invoke>\n</｜DSML｜function_calls>'
    for body in ('{"n": "1", "s": "</｜DSML｜invoke>"}', '\n{"n": "1", "s": "</｜DSML｜invoke>"}\n'):
        turn = parse("deepseek_dsml", frame.replace("@", body))
        assert _calls(turn) == [("f", {"n": 1, "s": "</｜DSML｜invoke>"})]
        assert (turn.tool_calls[0].arguments_text, turn.warnings) == (body.strip(), ())
    for odd in ('{"n": 1', '{"n": 1} and', "[1]", "text"):
        text = frame.replace("@", odd)
        turn = parse("deepseek_dsml", text)
        assert (turn.tool_calls, turn.content) == ((), text)


def test_cohere_s_list_may_lack_its_brackets(parse: Parse) -> None:
    call = '{"tool_call_id": "0", "tool_name": "f", "parameters": {"n": "1"}}'
    turn = parse("cohere", f"<|START_ACTION|>{call}<|END_ACTION|>")
    assert [(call.id, call.name, call.arguments) for call in turn.tool_calls] == [("0", "f", {"n": 1})]
    for odd in (call[:-1], "{}", f"{call},", "1"):
        assert parse("cohere", f"<|START_ACTION|>{odd}<|END_ACTION|>").tool_calls == ()


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
