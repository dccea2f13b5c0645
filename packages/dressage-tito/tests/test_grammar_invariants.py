"""What holds for every grammar: calls come back, nothing is lost, a cut call is none, odd text costs little.

Renderings are made here, one for each grammar, as the families' templates print them.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from dressage_tito import ChatCodec, ParsedTurn
from dressage_tito.grammars import GRAMMARS, grammar_named
from dressage_tito.grammars.base import TurnContext, schemas_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.heavy

Calls = list[tuple[str, dict[str, Any]]]
THINK = ("<think>", "</think>")
M3 = "]<]minimax[>["
SLOW = [HealthCheck.too_slow]  # a busy machine draws nested values slowly


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _raw(value: Any) -> str:
    return value if isinstance(value, str) else _dump(value)


def _each(form: str, calls: Calls, between: str = "\n") -> str:
    return between.join(
        form.replace("@NAME", name).replace("@INDEX", str(index)).replace("@ARGS", _dump(arguments))
        for index, (name, arguments) in enumerate(calls)
    )


def _tagged(head: str, parameter: str, tail: str, calls: Calls, between: str = "\n") -> str:
    return between.join(
        head.replace("@NAME", name)
        + "".join(
            parameter.replace("@KEY", key)
            .replace("@STRING", str(isinstance(value, str)).lower())
            .replace("@TYPE", "string" if isinstance(value, str) else "other")
            .replace("@VALUE", _raw(value))
            for key, value in arguments.items()
        )
        + tail
        for name, arguments in calls
    )


def _gemma(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_gemma(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_gemma(item) for item in value) + "]"
    return _dump(value)


def _python(value: Any) -> str:
    if isinstance(value, str):
        text = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
        return f"'{text}'"
    return _dump(value) if isinstance(value, dict | list) else str(value)


def _lfm2(calls: Calls) -> str:
    inner = ", ".join(
        f"{name}({', '.join(f'{key}={_python(value)}' for key, value in arguments.items())})"
        for name, arguments in calls
    )
    return f"<|tool_call_start|>[{inner}]<|tool_call_end|>"


RENDER: dict[str, Callable[[Calls], str]] = {
    "hermes": lambda calls: _each('<tool_call>\n{"name": "@NAME", "arguments": @ARGS}\n</tool_call>', calls),
    "qwen3_coder": lambda calls: _tagged(
        "<tool_call>\n<function=@NAME>\n",
        "<parameter=@KEY>\n@VALUE\n</parameter>\n",
        "</function>\n</tool_call>",
        calls,
    ),
    "glm": lambda calls: _tagged(
        "<tool_call>@NAME\n",
        "<arg_key>@KEY</arg_key>\n<arg_value>@VALUE</arg_value>\n",
        "</tool_call>",
        calls,
    ),
    "minimax_m2": lambda calls: (
        "<minimax:tool_call>\n"
        + _tagged(
            '<invoke name="@NAME">\n', '<parameter name="@KEY">@VALUE</parameter>\n', "</invoke>\n", calls, ""
        )
        + "</minimax:tool_call>"
    ),
    "deepseek_dsml": lambda calls: (
        "<｜DSML｜function_calls>\n"
        + _tagged(
            '<｜DSML｜invoke name="@NAME">\n',
            '<｜DSML｜parameter name="@KEY" string="@STRING">@VALUE</｜DSML｜parameter>\n',
            "</｜DSML｜invoke>\n",
            calls,
            "",
        )
        + "</｜DSML｜function_calls>"
    ),
    "deepseek_v3": lambda calls: (
        "<｜tool▁calls▁begin｜>"
        + _each(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>@NAME\n```json\n@ARGS\n```<｜tool▁call▁end｜>", calls
        )
        + "<｜tool▁calls▁end｜>"
    ),
    "deepseek_v3_1": lambda calls: (
        "<｜tool▁calls▁begin｜>"
        + _each("<｜tool▁call▁begin｜>@NAME<｜tool▁sep｜>@ARGS<｜tool▁call▁end｜>", calls, "")
        + "<｜tool▁calls▁end｜>"
    ),
    "kimi_k2": lambda calls: (
        "<|tool_calls_section_begin|>"
        + _each(
            "<|tool_call_begin|>functions.@NAME:@INDEX<|tool_call_argument_begin|>@ARGS<|tool_call_end|>",
            calls,
            "",
        )
        + "<|tool_calls_section_end|>"
    ),
    "harmony": lambda calls: _each(
        "<|start|>assistant<|channel|>commentary to=functions.@NAME"
        " <|constrain|>json<|message|>@ARGS<|call|>",
        calls,
        "",
    ),
    "mistral": lambda calls: _each("[TOOL_CALLS]@NAME[CALL_ID]call0000@INDEX[ARGS]@ARGS", calls, ""),
    "llama3_json": lambda calls: _each('{"name": "@NAME", "parameters": @ARGS}', calls, "; "),
    "gemma4": lambda calls: "".join(
        f"<|tool_call>call:{name}{_gemma(arguments)}<tool_call|>" for name, arguments in calls
    ),
    "lfm2": _lfm2,
    "cohere": lambda calls: (
        "<|START_ACTION|>[\n    "
        + _each('{"tool_call_id": "@INDEX", "tool_name": "@NAME", "parameters": @ARGS}', calls, ",\n    ")
        + "\n]<|END_ACTION|>"
    ),
}

RENDER["kimi_k3"] = lambda calls: (
    "<|open|>tools<|sep|>"
    + _tagged(
        '<|open|>call tool="@NAME" index="1"<|sep|>',
        '<|open|>argument key="@KEY" type="@TYPE"<|sep|>@VALUE<|close|>argument<|sep|>',
        "<|close|>call<|sep|>",
        calls,
        "",
    )
    + "<|close|>tools<|sep|>"
)
RENDER["json_list"] = lambda calls: (
    "<TOOLCALL>[" + _each('{"name": "@NAME", "arguments": @ARGS}', calls, ", ") + "]</TOOLCALL>"
)

RENDER["apertus"] = lambda calls: (
    "<|tools_prefix|>[" + _each('{"@NAME": @ARGS}', calls, ", ") + "]<|tools_suffix|>"
)
RENDER["seed_oss"] = lambda calls: _tagged(
    "<seed:tool_call>\n<function=@NAME>\n",
    "<parameter=@KEY>@VALUE</parameter>\n",
    "</function>\n</seed:tool_call>",
    calls,
)
RENDER["hunyuan3"] = lambda calls: (
    "<tool_calls:opensource>\n"
    + _tagged(
        "<tool_call:opensource>@NAME<tool_sep:opensource>\n",
        "<arg_key:opensource>@KEY</arg_key:opensource>\n"
        "<arg_value:opensource>@VALUE</arg_value:opensource>\n",
        "</tool_call:opensource>\n",
        calls,
        "",
    )
    + "</tool_calls:opensource>"
)
RENDER["minicpm5"] = lambda calls: _tagged(
    '<function name="@NAME">', '<param name="@KEY">@VALUE</param>', "</function>", calls
)


def _elements(value: Any) -> str:
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else [("item", item) for item in value]
        return "".join(f"{M3}<{key}>{_elements(item)}{M3}</{key}>" for key, item in pairs)
    return _raw(value)


RENDER["minimax_m3"] = lambda calls: (
    f"{M3}<tool_call>\n"
    + "".join(f'{M3}<invoke name="{name}">{_elements(arguments)}{M3}</invoke>\n' for name, arguments in calls)
    + f"{M3}</tool_call>"
)


def _has_only_texts(value: Any) -> bool:
    """Elements name no types: below a parameter a schema must, and what is empty looks like no text."""
    if isinstance(value, dict):
        return set(value) - {"item"} != set() and all(map(_has_only_texts, value.values()))
    return (
        bool(value) and all(map(_has_only_texts, value))
        if isinstance(value, list)
        else isinstance(value, str)
    )


AMBIGUOUS = {
    "seed_oss": r"</parameter>\s*(?:<parameter=|</function>)|</seed:tool_call>\s*<seed:tool_call>",
    "hunyuan3": r"</arg_value:opensource>\s*(?:<arg_key:|</tool_call:)|</tool_call:opensource>\s*<",
    "minicpm5": r"</param>\s*(?:<param name=|</function>)|</function>\s*<function name=|^<!\[CDATA\[",
    "minimax_m3": r"\]<\]minimax\[>\[",
    "kimi_k3": r"<\|close\|>argument<\|sep\|>\s*<\||<\|close\|>call<\|sep\|>\s*<\|",
    "qwen3_coder": r"</parameter>\s*(?:<parameter=|</function>)|</function>\s*</tool_call>\s*<tool_call>",
    "glm": r"</arg_value>\s*(?:<arg_key>|</tool_call>)|</tool_call>\s*<tool_call>",
    "minimax_m2": r"</parameter>\s*(?:<parameter name=|</invoke>)|</invoke>\s*<",
    "deepseek_dsml": r"</｜DSML｜parameter>\s*(?:<｜DSML｜parameter|</｜DSML｜invoke>)|</｜DSML｜invoke>\s*<",
    "gemma4": r'<\|"\|>\s*[,}\]:]|<tool_call\|>\s*<\|tool_call>',
    "lfm2": r"<\|tool_call_end\|>\s*<\|tool_call_start\|>",
}
"""Raw text that a grammar cannot tell from its own frame: no value may hold it."""

CLOSE = {
    "apertus": "<|tools_suffix|>",
    "seed_oss": "</seed:tool_call>",
    "hunyuan3": "</tool_call:opensource>",
    "minicpm5": "</function>",
    "minimax_m3": "]<]minimax[>[</invoke>",
    "hermes": "</tool_call>",
    "qwen3_coder": "</tool_call>",
    "glm": "</tool_call>",
    "minimax_m2": "</invoke>",
    "deepseek_dsml": "</｜DSML｜invoke>",
    "deepseek_v3": "<｜tool▁call▁end｜>",
    "deepseek_v3_1": "<｜tool▁call▁end｜>",
    "kimi_k2": "<|tool_call_end|>",
    "harmony": "<|call|>",
    "gemma4": "<tool_call|>",
    "lfm2": "<|tool_call_end|>",
    "cohere": "<|END_ACTION|>",
    "kimi_k3": "<|close|>call<|sep|>",
    "json_list": "</TOOLCALL>",
}
"""What ends a call; the others' calls end with the turn alone."""

MARKS = (
    *("<|tools_prefix|>", "<|tools_suffix|>", "<seed:tool_call>", "</seed:tool_call>", '{"f": {}}'),
    *("<tool_calls:opensource>", "<tool_call:opensource>", "<tool_sep:opensource>", "<arg_key:opensource>"),
    *(
        "</arg_key:opensource>",
        "<arg_value:opensource>",
        "</arg_value:opensource>",
        "</tool_call:opensource>",
    ),
    *('<function name="f">', '<param name="a">', "</param>", f"{M3}<tool_call>", f'{M3}<invoke name="f">'),
    *(f"{M3}<a>", f"{M3}</a>", f"{M3}<item>", f"{M3}</item>", f"{M3}</invoke>", f"{M3}</tool_call>", M3),
    *("<|open|>tools<|sep|>", '<|open|>call tool="f" index="1"<|sep|>', "<|close|>call<|sep|>", "<TOOLCALL>"),
    *("<|close|>argument<|sep|>", "<|close|>tools<|sep|>", "<|open|>response<|sep|>", "</TOOLCALL>"),
    *("<|close|>response<|sep|>", "<|close|>message<|sep|>", "<tool_calls>", "</tool_calls>"),
    *("<tool_call>", "</tool_call>", "<function=f>", "<parameter=a>", "</parameter>", "</function>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", '<invoke name="f">', "</invoke>"),
    *("<minimax:tool_call>", "</minimax:tool_call>", '<parameter name="a">', "<｜DSML｜function_calls>"),
    *('<｜DSML｜invoke name="f">', "</｜DSML｜invoke>", "</｜DSML｜function_calls>", "</｜DSML｜parameter>"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    *("<｜tool▁calls▁end｜>", "```json\n", "\n```", "<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
    *("functions.f:0", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"),
    *("<|start|>", "assistant", "<|channel|>", "analysis", "commentary to=functions.f ", "<|constrain|>json"),
    *("<|message|>", "<|end|>", "<|call|>", "<|return|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[", "]"),
    *("<|python_tag|>", "<|tool_call>", "call:f", '<|"|>', "<tool_call|>", "<|tool_call_start|>", "f("),
    *("a=", "'", ")", "<|tool_call_end|>", "<|START_ACTION|>", "<|END_ACTION|>", "<|START_RESPONSE|>"),
    *("<think>", "</think>", "{", "}", "{}", '"', '{"name": "f", "arguments": {}}', ":", ",", ";", "\\"),
    *('{"name": "f", "parameters": {"a": 1}}', "f", "a", " ", "\n", "é", "👩‍👩‍👧", "1", "null", "\u2028"),
)

TEXT = st.one_of(
    st.text(max_size=8),
    st.lists(st.sampled_from(MARKS), max_size=6).map("".join),
)
KEY = st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True)
JSON_VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEY, inner, max_size=3),
    max_leaves=5,
)
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["shell", "read_file", "mcp.a-b"]), st.dictionaries(KEY, JSON_VALUE, max_size=3)
    ),
    min_size=1,
    max_size=3,
)
GRAMMAR = st.sampled_from(sorted(RENDER))
TYPES = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    dict: "object",
    list: "array",
    type(None): "null",
}


def _tools(calls: Calls) -> list[dict[str, Any]]:
    """Tools whose schemas name the arguments' types (calls of one name are told apart by the caller)."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "parameters": {
                    "type": "object",
                    "properties": {key: {"type": TYPES[type(value)]} for key, value in arguments.items()},
                },
            },
        }
        for name, arguments in calls
    ]


def _named_apart(calls: Calls) -> Calls:
    return [(f"{name}{index}", arguments) for index, (name, arguments) in enumerate(calls)]


def _parse(name: str, text: str, calls: Calls, finish_reason: str = "stop") -> ParsedTurn:
    return grammar_named(name).parse(  # type: ignore[arg-type]
        text,
        reasoning_open=False,
        finish_reason=finish_reason,
        tools=_tools(calls),
        reasoning_tags=None if name == "harmony" else THINK,
    )


def _speaks(name: str, calls: Calls) -> bool:
    """Whether the grammar can write these calls so that they can be told from its frame."""
    texts = [text for _, arguments in calls for text in _strings(arguments)]
    if name == "minimax_m3":
        nested = [value for _, arguments in calls for value in arguments.values()]
        if not all(_has_only_texts(value) for value in nested if isinstance(value, dict | list)):
            return False
    pattern = AMBIGUOUS.get(name)
    return pattern is None or not any(re.search(pattern, text) for text in texts)


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in value.values() for text in _strings(item)]
    return [text for item in value for text in _strings(item)] if isinstance(value, list) else []


def test_every_grammar_has_a_rendering_here() -> None:
    assert sorted(RENDER) == sorted(GRAMMARS)


@given(name=GRAMMAR, calls=CALLS.map(_named_apart), before=st.sampled_from(["", "Look.", "é 👩‍👩‍👧 {x}"]))
@settings(max_examples=250, deadline=None, suppress_health_check=SLOW)
def test_calls_come_back_as_they_were_rendered(name: str, calls: Calls, before: str) -> None:
    if not _speaks(name, calls):
        return
    if name in {"llama3_json", "harmony"}:
        before = ""
    turn = _parse(name, before + RENDER[name](calls), calls)
    assert [(call.name, call.arguments) for call in turn.tool_calls] == calls
    for call, (_, arguments) in zip(turn.tool_calls, calls, strict=True):
        assert list(map(type, call.arguments.values())) == list(map(type, arguments.values()))
        assert json.loads(call.arguments_text) == arguments
    assert (turn.content, turn.warnings) == (before, ())
    assert all(call.id for call in turn.tool_calls) == GRAMMARS[name].carries_ids  # type: ignore[index]


@given(
    name=GRAMMAR,
    calls=CALLS.map(_named_apart),
    cut=st.floats(0, 1),
    reason=st.sampled_from(["length", "abort"]),
)
@settings(max_examples=250, deadline=None, suppress_health_check=SLOW)
def test_a_cut_turn_calls_only_what_was_whole(name: str, calls: Calls, cut: float, reason: str) -> None:
    if not _speaks(name, calls):
        return
    text = RENDER[name](calls)
    kept = text[: int(cut * (len(text) - 1))]
    turn = _parse(name, kept, calls, reason)
    found = [(call.name, call.arguments) for call in turn.tool_calls]
    assert found == calls[: len(found)]
    close = CLOSE.get(name)
    whole = len(text) + 1 if close is None else text.rindex(close) + len(close)
    assert len(found) < len(calls) or len(kept) >= whole
    assert found or turn.content == kept
    assert found or not kept.strip() or turn.warnings or len(kept) < 40


@dataclass(frozen=True)
class _Soup:
    name: str
    text: str


SOUP = st.builds(_Soup, GRAMMAR, st.lists(st.sampled_from(MARKS), max_size=30).map("".join))
FRAME = re.compile(
    r"(?:\s|</?think>|<\|(?:open|close)\|>(?:response|message)<\|sep\|>|<\|(?:START|END)_(?:RESPONSE|TEXT)\|>|<\|(?:start|message|end|call|return)\|>"
    r"|assistant|<\|channel\|>\s*[a-zA-Z_]+|<\|constrain\|>|json|[\w.+/-]+)*"
)


@given(soup=SOUP, is_open=st.booleans(), reason=st.sampled_from(["stop", "length"]), offered=st.booleans())
@settings(max_examples=800, deadline=None, suppress_health_check=SLOW)
def test_the_pieces_of_any_text_are_the_text(soup: _Soup, is_open: bool, reason: str, offered: bool) -> None:
    """Nothing is lost: pieces follow each other without gap or overlap, and a frame holds tags and blanks."""
    grammar = grammar_named(soup.name)  # type: ignore[arg-type]
    tools = _tools([("f", {"a": 1})]) if offered else []
    tags = None if soup.name == "harmony" else THINK
    reading = grammar.read(soup.text, TurnContext(tags, is_open, reason, tools, schemas_of(tools)))
    position = 0
    for piece in reading.pieces:
        assert piece.start == position < piece.end
        position = piece.end
        if piece.kind == "frame":
            assert FRAME.fullmatch(soup.text[piece.start : piece.end])
        assert bool(piece.calls) == (piece.kind == "call")
    assert position == len(soup.text)
    if not offered:
        assert not any(piece.calls for piece in reading.pieces)


@given(name=GRAMMAR, calls=CALLS.map(_named_apart), sizes=st.lists(st.integers(1, 7), max_size=80))
@settings(max_examples=150, deadline=None, suppress_health_check=SLOW)
def test_how_a_turn_was_split_into_ids_changes_nothing(
    toy: ChatCodec, name: str, calls: Calls, sizes: list[int]
) -> None:
    codec = toy.with_profile(
        replace(toy.profile, tool_grammar=name, reasoning_tags=None if name == "harmony" else THINK)
    )
    text = ("" if name == "llama3_json" else "café 👩‍👩‍👧 ") + RENDER[name](calls)
    ids: list[int] = []
    position = 0
    for size in sizes:
        ids += toy.encode_plain(text[position : position + size])
        position += size
    ids += toy.encode_plain(text[position:])
    whole = _parse(name, codec.decode(ids), calls)
    assert codec.parse(ids, reasoning_open=False, finish_reason="stop", tools=_tools(calls)) == whole


@pytest.mark.parametrize("name", sorted(RENDER))
def test_hostile_text_is_parsed_in_linear_time(name: str) -> None:
    one = RENDER[name]([("f", {"a": "x", "b": [1, {"c": "y"}]})])
    units = [
        one,
        one[:-1],
        one[: len(one) // 2],
        one[: len(one) // 3] + one,
        one.replace("x", "x" + one[:40]),
    ]
    units += [one[len(one) // 3 :] + "<think>", one[:30] + "[" * 30, one[:-3] + "\n \n", one[:25], one[:12]]
    units += [one[: len(one) * 3 // 4] + one[len(one) // 4 :], one.replace('"', ""), one.replace("</", "<")]
    for unit in (*units, " ", "\n", one[: len(one) // 2] + " " * 999, "[{" * 9, '"', "'" * 3):
        text = unit * (200_000 // len(unit))
        start = time.process_time()
        _parse(name, text, [("f", {"a": "x"})])
        # Linear work takes a fraction of a second, quadratic work minutes: a busy machine changes neither.
        assert time.process_time() - start < 15, unit
