"""The public failure cases of tool-call parsing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest
from dressage_tito import ChatCodec, ParsedTurn, coerce_arguments
from dressage_tito.fuzz import TOOLS
from dressage_tito.grammars import GRAMMARS
from hypothesis import given, settings
from hypothesis import strategies as st

SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "ok": {"type": "boolean"},
        "code": {"type": "string"},
        "any": {},
        "u": {"type": ["integer", "string"]},
        "f": {"type": "number"},
        "o": {"anyOf": [{"type": "object"}, {"type": "null"}]},
        "l": {"type": "array", "items": {"type": "integer"}},
    },
}
THINK = ("<think>", "</think>")
TYPED = [{"type": "function", "function": {"name": "typed", "parameters": SCHEMA}}]


Values = dict[str, str]


def _json(values: Values) -> str:
    return json.dumps(values, ensure_ascii=False)


def _tags(form: str, values: Values) -> str:
    return "".join(form.format(key, value) for key, value in values.items())


WRITTEN: dict[str, Callable[[str, Values], str]] = {
    "hermes": lambda name, values: _call(name, _json(values)),
    "qwen3_coder": lambda name, values: (
        f"<tool_call>\n<function={name}>\n"
        + _tags("<parameter={}>\n{}\n</parameter>\n", values)
        + "</function>\n</tool_call>"
    ),
    "glm": lambda name, values: (
        f"<tool_call>{name}\n"
        + _tags("<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n", values)
        + "</tool_call>"
    ),
    "minimax_m2": lambda name, values: (
        f'<minimax:tool_call>\n<invoke name="{name}">\n'
        + _tags('<parameter name="{}">{}</parameter>\n', values)
        + "</invoke>\n</minimax:tool_call>"
    ),
    "deepseek_dsml": lambda name, values: (
        f'<｜DSML｜function_calls>\n<｜DSML｜invoke name="{name}">\n'
        + _tags('<｜DSML｜parameter name="{}" string="true">{}</｜DSML｜parameter>\n', values)
        + "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
    ),
    "deepseek_v3": lambda name, values: (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{_json(values)}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek_v3_1": lambda name, values: (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{_json(values)}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "kimi_k2": lambda name, values: (
        f"<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>"
        f"{_json(values)}<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "harmony": lambda name, values: (
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{_json(values)}<|call|>"
    ),
    "mistral": lambda name, values: (
        f'[TOOL_CALLS][{{"name": "{name}", "arguments": {_json(values)}, "id": "abcdefghi"}}]'
    ),
    "llama3_json": lambda name, values: f'{{"name": "{name}", "parameters": {_json(values)}}}',
    "gemma4": lambda name, values: (
        f"<|tool_call>call:{name}{{" + _tags('{}:<|"|>{}<|"|>,', values).removesuffix(",") + "}<tool_call|>"
    ),
    "lfm2": lambda name, values: (
        f"<|tool_call_start|>[{name}(" + _tags("{}='{}', ", values).removesuffix(", ") + ")]<|tool_call_end|>"
    ),
    "cohere": lambda name, values: (
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "'
        f'{name}", "parameters": {_json(values)}}}\n]<|END_ACTION|>'
    ),
}
WRITTEN["kimi_k3"] = lambda name, values: (
    f'<|open|>tools<|sep|><|open|>call tool="{name}" index="1"<|sep|>'
    + _tags('<|open|>argument key="{}" type="string"<|sep|>{}<|close|>argument<|sep|>', values)
    + "<|close|>call<|sep|><|close|>tools<|sep|>"
)
WRITTEN["json_list"] = lambda name, values: (
    f'<TOOLCALL>[{{"name": "{name}", "arguments": {_json(values)}}}]</TOOLCALL>'
)
WRITTEN["apertus"] = lambda name, values: f'<|tools_prefix|>[{{"{name}": {_json(values)}}}]<|tools_suffix|>'
WRITTEN["seed_oss"] = lambda name, values: (
    f"<seed:tool_call>\n<function={name}>\n"
    + _tags("<parameter={}>{}</parameter>\n", values)
    + "</function>\n</seed:tool_call>"
)
WRITTEN["hunyuan3"] = lambda name, values: (
    f"<tool_calls:opensource>\n<tool_call:opensource>{name}<tool_sep:opensource>\n"
    + _tags(
        "<arg_key:opensource>{}</arg_key:opensource>\n<arg_value:opensource>{}</arg_value:opensource>\n",
        values,
    )
    + "</tool_call:opensource>\n</tool_calls:opensource>"
)
WRITTEN["minicpm5"] = lambda name, values: (
    f'<function name="{name}">' + _tags('<param name="{}">{}</param>', values) + "</function>"
)
WRITTEN["minimax_m3"] = lambda name, values: (
    f']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="{name}">'
    + "".join(f"]<]minimax[>[<{key}>{value}]<]minimax[>[</{key}>" for key, value in values.items())
    + "]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>"
)
"""A call whose values are texts, as each grammar writes it."""


def _speaking(codec: ChatCodec, grammar: str) -> ChatCodec:
    return codec.with_profile(
        replace(codec.profile, tool_grammar=grammar, reasoning_tags=None if grammar == "harmony" else THINK)
    )


def _parse(codec: ChatCodec, text: str, finish_reason: str = "stop") -> ParsedTurn:
    return codec.parse(
        codec.encode_sample(text), reasoning_open=False, finish_reason=finish_reason, tools=[*TYPED, *TOOLS]
    )


def _call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@pytest.mark.parametrize(
    ("name", "text", "value", "warns"),
    [
        ("n", "7", 7, False),
        ("n", "-7", -7, False),
        ("n", "7.5", "7.5", True),
        ("n", "020", "020", True),
        ("n", "", "", True),
        ("n", "x", "x", True),
        ("n", "1e3", "1e3", True),
        ("n", "９", "９", True),
        ("n", "9" * 5000, "9" * 5000, True),
        ("ok", "True", True, False),
        ("ok", "false", False, False),
        ("ok", "yes", "yes", True),
        ("code", "00917", "00917", False),
        ("code", "True", "True", False),
        ("any", "1e3", "1e3", False),
        ("other", "1", "1", False),
        ("u", "x", "x", False),
        ("u", "7", "7", False),
        ("f", "7", 7, False),
        ("f", "7.50", 7.5, False),
        ("f", "nan", "nan", True),
        ("o", "null", None, False),
        ("o", '{"a": "1"}', {"a": "1"}, False),
        ("o", "[1]", "[1]", True),
        ("l", "[1, 2]", [1, 2], False),
        ("l", ["1", 2], [1, 2], False),
        ("l", "[1", "[1", True),
        ("l", "(1, 2)", [1, 2], False),
        ("l", "[1,\t2 ,]", [1, 2], False),
        ("l", "{'a': 1}", "{'a': 1}", True),
        ("o", "{'a': True, 'b': None}", {"a": True, "b": None}, False),
        ("o", "{'a': nan}", "{'a': nan}", True),
        ("o", "{'a' 'b': 1}", "{'a' 'b': 1}", True),
        ("code", "{'a': 1}", "{'a': 1}", False),
        ("any", "{'a': 1}", "{'a': 1}", False),
    ],
)
def test_c28_a_text_becomes_the_schemas_type_only_where_it_spells_it_exactly(
    name: str, text: object, value: object, warns: bool
) -> None:
    coerced, warnings = coerce_arguments({name: text}, SCHEMA)
    assert coerced == {name: value}
    assert type(coerced[name]) is type(value)
    assert bool(warnings) == warns


NODE = {"type": "object", "properties": {"n": {"type": "integer"}, "next": {"$ref": "#/$defs/Node"}}}
SPREAD = {
    "type": "object",
    "$defs": {"Node": NODE, "Level": {"enum": [1, 2]}, "Loop": {"$ref": "#/$defs/Loop"}},
    "properties": {
        "node": {"$ref": "#/$defs/Node"},
        "maybe": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
        "all": {"allOf": [{"$ref": "#/$defs/Node"}, {"description": "narrower"}]},
        "level": {"$ref": "#/$defs/Level"},
        "word": {"enum": ["1", "2"]},
        "flag": {"const": True},
        "plain": {"properties": {"n": {"type": "integer"}}},
        "list": {"items": {"$ref": "#/$defs/Level"}},
        "loop": {"$ref": "#/$defs/Loop"},
        "lost": {"$ref": "#/$defs/Nowhere"},
        "far": {"$ref": "https://example.invalid/schema"},
        "either": {"oneOf": [{"type": "integer"}, {}]},
        "mixed": {"enum": [1, 2, True, "auto"]},
        "listed": {"type": ["string", "integer"], "enum": [1, "a"]},
        "some": {"anyOf": [{"enum": ["auto"]}, {"enum": [1]}]},
        "none": {"type": "integer", "nullable": True},
        "others": {"type": "object", "additionalProperties": {"type": "integer"}},
        "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]},
        "older": {"type": "array", "items": [{"type": "integer"}], "additionalItems": {"type": "boolean"}},
    },
}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("node", '{"n": "7", "next": {"n": "8"}}', {"n": 7, "next": {"n": 8}}),
        ("maybe", '{"n": "7"}', {"n": 7}),
        ("maybe", "null", None),
        ("all", '{"n": "7"}', {"n": 7}),
        ("level", "2", 2),
        ("word", "2", "2"),
        ("flag", "true", True),
        ("plain", '{"n": "7"}', {"n": 7}),
        ("list", '["1"]', [1]),
        ("loop", "1", "1"),
        ("lost", "1", "1"),
        ("far", "1", "1"),
        ("either", "1", "1"),
        ("mixed", "1", 1),
        ("mixed", "true", True),
        ("mixed", "3", "3"),
        ("mixed", "auto", "auto"),
        ("listed", "1", 1),
        ("listed", "2", "2"),
        ("some", "1", 1),
        ("none", "null", None),
        ("none", "5", 5),
        ("others", '{"k": "7"}', {"k": 7}),
        ("pair", '["1", "2", "3"]', ["1", 2, "3"]),
        ("older", '["1", "true"]', [1, True]),
    ],
)
def test_c28_a_type_that_a_schema_names_elsewhere_counts(name: str, text: str, value: object) -> None:
    assert coerce_arguments({name: text}, SPREAD) == ({name: value}, ())
    deep: dict[str, object] = {"n": "1"}
    for _ in range(400):
        deep = {"next": deep}
    assert coerce_arguments({"node": deep}, SPREAD)[1] == ()


def test_c28_the_case_as_written_with_the_original_text_kept(toy: ChatCodec) -> None:
    text = '{"n":"7","ok":"True","code":"00917","any":"1e3","u":"x"}'
    turn = _parse(toy, _call("typed", text))
    (call,) = turn.tool_calls
    assert call.arguments == {"n": 7, "ok": True, "code": "00917", "any": "1e3", "u": "x"}
    assert call.arguments_text == text
    assert turn.warnings == ()
    turn = _parse(toy, _call("typed", '{"n":"7.5"}'))
    assert turn.tool_calls[0].arguments == {"n": "7.5"}
    assert turn.warnings == ("argument_type: typed: argument n is the text '7.5', not integer",)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        *(("int", "7", 7), ("INTEGER", "7", 7), ("long", "7", 7), ("float", "7.5", 7.5), ("Number", "7", 7)),
        *(("bool", "True", True), ("str", "7", "7"), ("text", "7", "7"), ("String", "[1]", "[1]")),
        *(("dict", '{"a": 1}', {"a": 1}), ("list", "[1]", [1]), ("tuple", "(1, 2)", [1, 2])),
        *((["int", "null"], "null", None), (["int", "str"], "7", "7"), ("any", "7", "7")),
    ],
)
def test_c28_type_names_of_tools_that_were_described_by_hand_are_known(
    kind: object, text: str, value: object
) -> None:
    coerced, warnings = coerce_arguments({"a": text}, {"properties": {"a": {"type": kind}}})
    assert (coerced, warnings) == ({"a": value}, ())
    assert type(coerced["a"]) is type(value)


@given(st.lists(st.integers(1, 5), max_size=60))
@settings(max_examples=50)
def test_c28_every_split_of_the_text_into_ids_parses_the_same(toy: ChatCodec, sizes: list[int]) -> None:
    text = "Look at café 👩‍👩‍👧\n" + _call("typed", '{"n": "7", "code": "</tool_call> é"}')
    whole = _parse(toy, text)
    ids: list[int] = []
    position = 0
    for size in sizes:
        ids += toy.encode_plain(text[position : position + size])
        position += size
    ids += toy.encode_plain(text[position:])
    assert toy.decode(ids) == text
    assert toy.parse(ids, reasoning_open=False, finish_reason="stop", tools=TYPED) == whole
    assert whole.content == "Look at café 👩‍👩‍👧"
    assert whole.tool_calls[0].arguments == {"n": 7, "code": "</tool_call> é"}


def test_every_grammar_is_written_here() -> None:
    assert sorted(WRITTEN) == sorted(GRAMMARS)


@pytest.mark.parametrize("grammar", sorted(WRITTEN))
def test_c28_every_grammar_types_a_text_by_the_schema(toy: ChatCodec, grammar: str) -> None:
    codec = _speaking(toy, grammar)
    values = {"n": "7", "ok": "True", "code": "00917", "any": "1e3", "u": "x"}
    (call,) = _parse(codec, WRITTEN[grammar]("typed", values)).tool_calls
    assert call.arguments == {"n": 7, "ok": True, "code": "00917", "any": "1e3", "u": "x"}
    assert [type(value) for value in call.arguments.values()] == [int, bool, str, str, str]
    assert coerce_arguments(json.loads(call.arguments_text), SCHEMA)[0] == call.arguments
    for name, text in (("n", "7.5"), ("n", "020"), ("ok", "yes"), ("f", "1e999")):
        turn = _parse(codec, WRITTEN[grammar]("typed", {name: text}))
        assert turn.tool_calls[0].arguments == {name: text}
        assert json.loads(turn.tool_calls[0].arguments_text) == {name: text}
        assert [warning.partition(":")[0] for warning in turn.warnings] == ["argument_type"]


@given(grammar=st.sampled_from(sorted(WRITTEN)), sizes=st.lists(st.integers(1, 5), max_size=60))
@settings(max_examples=60)
def test_c28_every_grammar_parses_every_split_the_same(
    toy: ChatCodec, grammar: str, sizes: list[int]
) -> None:
    codec = _speaking(toy, grammar)
    text = WRITTEN[grammar]("typed", {"n": "7", "ok": "true", "code": "é 👩‍👩‍👧"})
    ids: list[int] = []
    position = 0
    for size in sizes:
        ids += toy.encode_plain(text[position : position + size])
        position += size
    ids += toy.encode_plain(text[position:])
    turn = codec.parse(ids, reasoning_open=False, finish_reason="stop", tools=TYPED)
    assert turn == _parse(codec, text)
    assert turn.tool_calls[0].arguments == {"n": 7, "ok": True, "code": "é 👩‍👩‍👧"}


ODD_NAMES = ("a>b", "a<b", "a b", "a.b", "a[b]", "a,b", "a=b", "a:b", "a'b", "$a", "ключ", "1")


@pytest.mark.parametrize("grammar", sorted({*WRITTEN} - {"minimax_m3"}))  # whose tags are the names
@pytest.mark.parametrize("odd", ODD_NAMES)
def test_every_grammar_reads_the_parameters_that_a_tool_names_whatever_their_names_hold(
    toy: ChatCodec, grammar: str, odd: str
) -> None:
    properties = {name: {"type": "string"} for name in (odd, "code")} | {"n": {"type": "integer"}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}]
    values = {"code": "x y", odd: "v, w", "n": "7"}
    turn = _speaking(toy, grammar).parse(
        toy.encode_sample(WRITTEN[grammar]("f", values)),
        reasoning_open=False,
        finish_reason="stop",
        tools=tools,
    )
    assert [(call.name, call.arguments) for call in turn.tool_calls] == [("f", {**values, "n": 7})]
    assert (turn.content, turn.warnings) == ("", ())


@pytest.mark.parametrize("grammar", sorted(WRITTEN))
@pytest.mark.parametrize("schema", [None, True, [], "x", {}, {"properties": None}, {"properties": ["a"]}])
def test_every_grammar_reads_calls_of_a_tool_whose_schema_is_none(
    toy: ChatCodec, grammar: str, schema: object
) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    sample = toy.encode_sample(WRITTEN[grammar]("f", {"a": "7"}))
    turn = _speaking(toy, grammar).parse(sample, reasoning_open=False, finish_reason="stop", tools=tools)
    assert [(call.name, call.arguments) for call in turn.tool_calls] == [("f", {"a": "7"})]


@pytest.mark.parametrize("grammar", sorted(WRITTEN))
def test_e09_every_grammar_forwards_a_call_to_a_tool_that_was_not_offered(
    toy: ChatCodec, grammar: str
) -> None:
    turn = _parse(_speaking(toy, grammar), WRITTEN[grammar]("Read", {"file": "a"}))
    assert [(call.name, call.arguments) for call in turn.tool_calls] == [("Read", {"file": "a"})]
    assert (turn.content, json.loads(turn.tool_calls[0].arguments_text)) == ("", {"file": "a"})


@pytest.mark.parametrize("grammar", sorted(WRITTEN))
@pytest.mark.parametrize("finish_reason", ["length", "abort"])
def test_a_cut_call_is_content_in_every_grammar(toy: ChatCodec, grammar: str, finish_reason: str) -> None:
    codec = _speaking(toy, grammar)
    text = WRITTEN[grammar]("typed", {"code": "rm -rf build"})
    for size in range(1, text.index("build") + 3):
        turn = _parse(codec, text[:size], finish_reason)
        assert (turn.content, turn.tool_calls) == (text[:size], ())
    assert turn.warnings


@pytest.mark.parametrize("grammar", sorted(WRITTEN))
def test_without_offered_tools_no_grammar_calls(toy: ChatCodec, grammar: str) -> None:
    text = WRITTEN[grammar]("typed", {"code": "x"})
    turn = _speaking(toy, grammar).parse(
        toy.encode_sample(text), reasoning_open=False, finish_reason="stop", tools=None
    )
    assert (turn.content, turn.tool_calls) == (text, ())
    assert turn.warnings[0].startswith("tool_call_without_tools")


def test_c31_the_id_that_a_model_wrote_is_the_call_s_id(toy: ChatCodec) -> None:
    turn = _parse(_speaking(toy, "kimi_k2"), WRITTEN["kimi_k2"]("read", {}))
    assert [(call.id, call.name) for call in turn.tool_calls] == [("functions.read:0", "read")]
    turn = _parse(_speaking(toy, "mistral"), WRITTEN["mistral"]("read", {}))
    assert [(call.id, call.name) for call in turn.tool_calls] == [("abcdefghi", "read")]


def test_c31_an_id_that_the_prompt_prints_is_printed_as_it_was_given(toy: ChatCodec) -> None:
    from dressage_tito import message_from_json, message_to_json

    for call_id in ("functions.read:0", "call_0", "a/b c"):
        body = {"role": "tool", "content": "r", "tool_call_id": call_id}
        assert message_to_json(message_from_json(body))["tool_call_id"] == call_id
        call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
        message = message_from_json({"role": "assistant", "content": "", "tool_calls": [call]})
        assert message_to_json(message)["tool_calls"] == [call]


def test_e07_the_codec_mints_no_ids_so_none_can_repeat(toy: ChatCodec) -> None:
    turn = _parse(toy, _call("shell", "{}") + "\n" + _call("shell", "{}"))
    assert [call.id for call in turn.tool_calls] == ["", ""]


def test_e09_a_call_to_a_tool_that_was_not_offered_is_forwarded_as_written(toy: ChatCodec) -> None:
    turn = _parse(toy, _call("Read", '{"file": "a"}'))
    assert [(call.name, call.arguments_text) for call in turn.tool_calls] == [("Read", '{"file": "a"}')]
    assert turn.content == ""


def test_parallel_calls_and_the_content_before_them(toy: ChatCodec) -> None:
    turn = _parse(
        toy, "Two:\n" + _call("shell", '{"command": "a"}') + "\n" + _call("shell", '{"command": "b"}')
    )
    assert turn.content == "Two:"
    assert [call.arguments["command"] for call in turn.tool_calls] == ["a", "b"]


@pytest.mark.parametrize(
    "body",
    [
        "{",
        "not json",
        "[]",
        '"text"',
        '{"arguments": {}}',
        '{"name": 3, "arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": "shell", "arguments": "ls"}',
        '{"name": "shell", "arguments": [1]}',
        '{"name": "shell", "arguments": {"a": NaN}}',
        '{"name": "shell", "arguments": {"a": 1},}',
        '{"name": "shell", "arguments": {}} trailing',
        "{'name': 'shell'}",
        '{"name": "shell", "arguments": ' + "[" * 100_000,
    ],
)
def test_a_call_that_does_not_parse_stays_in_content_with_a_warning(toy: ChatCodec, body: str) -> None:
    text = f"before <tool_call>\n{body}\n</tool_call> after"
    turn = _parse(toy, text)
    assert turn.tool_calls == ()
    assert turn.content == text
    assert turn.warnings[0].startswith("malformed_tool_call")


@pytest.mark.parametrize("grammar", sorted({*WRITTEN} - {"harmony", "llama3_json", "mistral"}))
def test_a_whole_call_that_the_turn_s_end_closes_is_called_with_a_warning(
    toy: ChatCodec, grammar: str, renderings: ModuleType
) -> None:
    codec = _speaking(toy, grammar)
    text = WRITTEN[grammar]("typed", {"code": "x"})
    close = renderings.CLOSE[grammar]
    for blank in ("", "\n"):
        kept = text[: text.rindex(close)] + blank
        turn = _parse(codec, kept)
        assert [(call.name, call.arguments) for call in turn.tool_calls] == [("typed", {"code": "x"})]
        assert (turn.content, [warning.partition(":")[0] for warning in turn.warnings]) == (
            "",
            ["unclosed_tool_call"],
        )
        assert _parse(codec, kept, "length").tool_calls == ()
    assert _parse(codec, text[: text.rindex(close)] + "and more").tool_calls == ()


def test_several_calls_in_one_hermes_block_are_as_many_calls(toy: ChatCodec) -> None:
    one, two = '{"name": "shell", "arguments": {"command": "}"}}', '{"name": "Read", "arguments": {}}'
    for body in (f"{one}\n{two}", f"[{one}, {two}]", f"{one}{two}"):
        turn = _parse(toy, f"Two:\n<tool_call>\n{body}\n</tool_call>")
        assert [call.name for call in turn.tool_calls] == ["shell", "Read"]
        assert (turn.content, turn.warnings) == ("Two:", ())
    for body in (f"{one}\n{{}}", f"[{one}, 1]", f"[{one}", f"{one},{two}"):
        assert _parse(toy, f"<tool_call>\n{body}\n</tool_call>").tool_calls == ()


def test_a_good_call_after_a_bad_one_is_still_called(toy: ChatCodec) -> None:
    turn = _parse(toy, "<tool_call>oops</tool_call>\n" + _call("shell", "{}"))
    assert turn.content == "<tool_call>oops</tool_call>"
    assert len(turn.tool_calls) == 1


def test_words_before_between_and_after_calls_are_content_on_lines_of_their_own(toy: ChatCodec) -> None:
    turn = _parse(toy, "before\n" + _call("shell", "{}") + "\nafter\n")
    assert turn.content == "before\nafter\n"
    assert len(turn.tool_calls) == 1
    call = _call("shell", "{}")
    assert _parse(toy, f"a {call} b\n{call}\n\nc{call}").content == "a  b\n\nc"
    assert _parse(toy, f"{call}\n{call}after").content == "after"


@pytest.mark.parametrize("grammar", ["hermes", "mistral", "llama3_json", "cohere", "json_list"])
def test_arguments_that_are_written_as_a_text_of_json_are_arguments(toy: ChatCodec, grammar: str) -> None:
    codec = _speaking(toy, grammar)
    written = WRITTEN[grammar]("typed", {"n": "7"})
    turn = _parse(codec, written.replace('{"n": "7"}', json.dumps('{"n": "7", "code": "00"}')))
    assert [(call.arguments, call.arguments_text) for call in turn.tool_calls] == [
        ({"n": 7, "code": "00"}, '{"n": "7", "code": "00"}')
    ]
    assert [warning.partition(":")[0] for warning in turn.warnings] == ["arguments_are_text"]
    for odd in ('"[1]"', '"x"', '"{\\"n\\": 1} more"', '""', "[1]", "7", "true"):
        turn = _parse(codec, written.replace('{"n": "7"}', odd))
        assert turn.tool_calls == ()
        assert odd in turn.content


def test_absent_arguments_are_none_at_all(toy: ChatCodec) -> None:
    for body in (
        '{"name": "shell"}',
        '{"name": "shell", "arguments": null}',
        '{"name": "shell", "arguments": {}}',
    ):
        turn = _parse(toy, f"<tool_call>\n{body}\n</tool_call>")
        assert (turn.tool_calls[0].arguments, turn.tool_calls[0].arguments_text) == ({}, "{}")


@given(cut=st.integers(0, 200))
@settings(max_examples=60)
def test_a_truncated_call_is_never_callable_and_nothing_is_lost(toy: ChatCodec, cut: int) -> None:
    text = "a " + _call("shell", '{"command": "rm -rf </tool_call>", "x": {"y": [1]}}')
    kept = text[: min(cut, len(text) - 1)]
    turn = _parse(toy, kept, "length")
    assert turn.tool_calls == ()
    assert turn.content == kept


def test_without_offered_tools_markup_is_content(toy: ChatCodec) -> None:
    text = _call("shell", "{}")
    turn = toy.parse(toy.encode_sample(text), reasoning_open=False, finish_reason="stop", tools=None)
    assert (turn.content, turn.tool_calls) == (text, ())
    assert turn.warnings[0].startswith("tool_call_without_tools")


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
            ),
            max_leaves=6,
        ),
        max_size=4,
    )
)
def test_any_json_object_comes_back_with_its_own_text(toy: ChatCodec, value: dict[str, object]) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, separators=(",", ":"))):
        turn = _parse(toy, _call("free", text))
        assert turn.tool_calls[0].arguments == value
        assert turn.tool_calls[0].arguments_text == text
