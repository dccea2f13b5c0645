"""What is particular to the grammars of newer families, and to blocks of JSON calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from dressage_tito import ChatCodec, Encoded, Message, ParsedTurn
from dressage_tito.grammars import REASONING_TAGS

pytestmark = pytest.mark.heavy

Parse = Callable[..., ParsedTurn]
M3 = "]<]minimax[>["
M3_TAGS = ("<mm:think>", "</mm:think>")


def _calls(turn: ParsedTurn) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in turn.tool_calls]


def _m3(*calls: str) -> str:
    return f"{M3}<tool_call>\n" + "".join(f"{call}\n" for call in calls) + f"{M3}</tool_call>"


def _element(key: str, inner: str) -> str:
    return f"{M3}<{key}>{inner}{M3}</{key}>"


def _invoke(name: str, inner: str) -> str:
    return f'{M3}<invoke name="{name}">{inner}{M3}</invoke>'


@pytest.mark.parametrize(
    "text",
    [
        '<TOOLCALL>[{"name": "f", "arguments": {"n": 1}}, {"name": "g", "arguments": {}}]</TOOLCALL>',
        '<tool_calls>[{"name": "f", "arguments": {"n": 1}}, {"name": "g"}]</tool_calls>',
        '<tool_calls>\n{"name": "f", "arguments": {"n": "1"}}\n{"name": "g", "arguments": {}}\n</tool_calls>',
    ],
)
def test_a_block_of_json_calls_as_a_list_or_as_lines(parse: Parse, text: str) -> None:
    assert _calls(parse("json_list", text)) == [("f", {"n": 1}), ("g", {})]
    for cut in (text[:-1], text.replace("</", "<"), text.replace('"g"', "g"), text.replace('"name"', '"x"')):
        turn = parse("json_list", cut)
        assert (turn.content, turn.tool_calls) == (cut, ())
        assert turn.warnings


@pytest.mark.parametrize(
    "text",
    [
        '<|tool_call|>[{"name": "f", "arguments": {"n": "1"}}, {"name": "g", "arguments": {}}]',
        '<|function_call|>{"name": "f", "arguments": {"n": 1}}\n{"name": "g"}',
        '<|action_start|><|plugin|>\n{"name": "f", "parameters": {"n": 1}}<|action_end|>'
        '<|action_start|><|plugin|>\n{"name": "g", "parameters": {}}<|action_end|>',
    ],
)
def test_blocks_of_json_calls_that_other_marks_open(parse: Parse, text: str) -> None:
    turn = parse("json_list", f"Look.{text}")
    assert _calls(turn) == [("f", {"n": 1}), ("g", {})]
    assert (turn.content, turn.warnings) == ("Look.", ())
    assert _calls(parse("json_list", f"{text}\nDone.")) == _calls(turn)
    for cut in (text[:-2], text.replace('"g"', "g")):
        assert ("g", {}) not in _calls(parse("json_list", cut))
    if not text.endswith("<|action_end|>"):  # nothing but the turn's own end says that it was whole
        unfinished = parse("json_list", text, finish_reason="length")
        assert (unfinished.tool_calls, unfinished.content) == ((), text)
        broken = parse("json_list", text[:-2] + ' <|tool_call|>[{"name": "h", "arguments": {}}]')
        assert broken.tool_calls == ()


def test_kimi_k3_s_response_and_tools(parse: Parse) -> None:
    tools = (
        '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
    )
    end = "<|close|>message<|sep|>"
    for said in ("", "Hi."):
        text = f"Hm<|close|>think<|sep|><|open|>response<|sep|>{said}<|close|>response<|sep|>"
        for turn_text, calls in ((text + tools + end, ["f"]), (text + end, []), (text, [])):
            turn = parse("kimi_k3", turn_text, reasoning_open=True, reasoning_tags=REASONING_TAGS[4])
            assert (turn.reasoning, turn.content, turn.warnings) == ("Hm", said, ())
            assert [call.name for call in turn.tool_calls] == calls


def test_minimax_m3_s_elements_are_objects_and_lists_typed_by_the_schema(parse: Parse) -> None:
    inner = (
        _element("s", "<a> & </s>")
        + _element("l", _element("item", "1") + _element("item", "20"))
        + _element("o", _element("n", "7"))
        + _element("b", "True")
        + _element("z", "null")
        + _element("any", _element("k", _element("item", "1.50")))
    )
    turn = parse("minimax_m3", "Look." + _m3(_invoke("f", inner), _invoke("g", "")), reasoning_tags=M3_TAGS)
    arguments = {
        "s": "<a> & </s>",
        "l": [1, 20],
        "o": {"n": 7},
        "b": True,
        "z": "null",
        "any": {"k": ["1.50"]},
    }
    assert _calls(turn) == [("f", arguments), ("g", {})]
    assert json.loads(turn.tool_calls[0].arguments_text) == arguments
    assert (turn.content, turn.warnings) == ("Look.", ())


def test_minimax_m3_s_elements_may_stand_on_lines_of_their_own(parse: Parse) -> None:
    inner = f"\n{_element('s', ' x ')}\n{_element('l', f' {M3}<item>1{M3}</item>{chr(10)}')}\n"
    turn = parse("minimax_m3", _m3(_invoke("f", inner), _invoke("g", "\n")), reasoning_tags=M3_TAGS)
    assert _calls(turn) == [("f", {"s": " x ", "l": [1]}), ("g", {})]
    assert (turn.content, turn.warnings) == ("", ())
    for blank in ("", "\n", " \n "):
        turn = parse("minimax_m3", _m3(_invoke("f", _element("s", blank))), reasoning_tags=M3_TAGS)
        assert _calls(turn) == [("f", {"s": blank})]


def test_kimi_k3_s_names_of_arguments_are_as_they_were_before_the_template_wrote_them(parse: Parse) -> None:
    argument = '<|open|>argument key="a&amp;b &quot;<c>&quot; &amp;lt;" type="string"<|sep|>x &amp; y'
    call = f'<|open|>call tool="f" index="1"<|sep|>{argument}<|close|>argument<|sep|><|close|>call<|sep|>'
    text = f"<|open|>tools<|sep|>{call}<|close|>tools<|sep|>"
    assert _calls(parse("kimi_k3", text)) == [("f", {'a&b "<c>" &lt;': "x &amp; y"})]


@pytest.mark.parametrize(
    "inner",
    [
        _element("s", "x").replace("</s>", "</t>"),
        f"{M3}<s>x",
        _element("l", _element("item", "1") + "and more"),
        _element("l", "before" + _element("item", "1")),
        "words between" + _element("s", "x"),
    ],
)
def test_elements_that_do_not_match_are_no_call_and_hide_no_other(parse: Parse, inner: str) -> None:
    bad, good = _invoke("f", inner), _invoke("g", _element("s", "y"))
    turn = parse("minimax_m3", _m3(bad, good), reasoning_tags=M3_TAGS)
    assert _calls(turn) == [("g", {"s": "y"})]
    assert bad in turn.content
    assert turn.warnings[0].startswith("malformed_tool_call")


def test_minimax_m3_begins_a_turn_without_thinking_with_the_closing_tag(parse: Parse) -> None:
    for text, reasoning, content in (
        ("</mm:think>Hi.", "", "Hi."),
        ("<mm:think>Hm.</mm:think>Hi.", "Hm.", "Hi."),
        ("Hi. </mm:think> more", "", "Hi. </mm:think> more"),
        ("Hi.", "", "Hi."),
    ):
        turn = parse("minimax_m3", text, reasoning_tags=M3_TAGS)
        assert (turn.reasoning, turn.content) == (reasoning, content)
    # Only this family does: elsewhere the prompt alone says whether thinking was open.
    assert parse("hermes", "</think>Hi.").content == "</think>Hi."


def test_elements_nested_without_end_are_no_call_and_cost_little(parse: Parse) -> None:
    text = _m3(_invoke("f", f"{M3}<a>" * 20_000))
    turn = parse("minimax_m3", text, reasoning_tags=M3_TAGS)
    assert (turn.content, turn.tool_calls) == (text, ())


def test_apertus_writes_one_member_for_each_call(parse: Parse) -> None:
    text = '<|tools_prefix|>[{"f": {"n": "1", "s": "<|tools_suffix|>"}}, {"g": {}}]<|tools_suffix|>'
    assert _calls(parse("apertus", f"Look.{text}")) == [("f", {"n": 1, "s": "<|tools_suffix|>"}), ("g", {})]
    for body in ("[]", "[1]", '[{"f": 1}]', '[{"f": {}, "g": {}}]', '[{"f": {}}', '{"f": {}}', '[{"": {}}]'):
        odd = f"<|tools_prefix|>{body}<|tools_suffix|>"
        turn = parse("apertus", odd)
        assert (turn.content, turn.tool_calls) == (odd, ())
        assert turn.warnings


def test_seed_oss_puts_no_line_ends_around_a_value(parse: Parse) -> None:
    text = "<seed:tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n</seed:tool_call>"
    assert _calls(parse("seed_oss", text)) == [("f", {"s": "\nx\n"})]
    turn = parse("seed_oss", f"<seed:think>Hm.</seed:think>\nHi.\n\n{text}", reasoning_tags=REASONING_TAGS[5])
    assert (turn.reasoning, turn.content, len(turn.tool_calls)) == ("Hm.", "Hi.", 1)


def test_minicpm5_wraps_odd_text_in_cdata(parse: Parse) -> None:
    for written, value in (
        ("plain", "plain"),
        ("<![CDATA[a < b\n&]]>", "a < b\n&"),
        ("<![CDATA[no end", "<![CDATA[no end"),
        ("<![CDATA[]]>", ""),
        ("\n<![CDATA[a &lt; b]]>\n", "a &lt; b"),
        ("a &lt; b &amp;amp; &quot;c&quot; &#65; &nope; &", 'a < b &amp; "c" &#65; &nope; &'),
    ):
        text = f'<function name="f"><param name="s">{written}</param></function>'
        assert _calls(parse("minicpm5", text)) == [("f", {"s": value})]


def test_results_that_follow_the_calls_end_as_plain_text_are_appended_there_alone(
    real_codec: Callable[[str], ChatCodec], granted: Callable[[Encoded], Encoded]
) -> None:
    codec = real_codec("apertus")
    tools = [{"type": "function", "function": {"name": "f", "description": "F.", "parameters": {}}}]
    prompt = codec.start([Message("user", "u")], tools)
    assert isinstance(prompt, Encoded)
    sampled = codec.encode_sample('<|tools_prefix|>[{"f": {}}]<|tools_suffix|>')
    result = [Message("tool", "done", tool_call_id="c1", name="f")]
    delta = codec.extend([*prompt.ids, *sampled], result, tools)
    assert isinstance(delta, Encoded)
    assert codec.decode(delta.ids) == "[done]<|assistant_start|>"
    cut = codec.extend([*prompt.ids, *sampled[:-1]], result, tools)
    assert not isinstance(cut, Encoded)
    assert cut.reason == "closing_not_a_control_token"
