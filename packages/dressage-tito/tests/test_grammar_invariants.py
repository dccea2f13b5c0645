"""What holds for every grammar: calls come back, nothing is lost, a cut call is none, odd text costs little.

Renderings are those of grammar_renderings.py, one for each grammar, as the families' templates print them.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, replace
from types import ModuleType
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
GRAMMAR = st.sampled_from(sorted(GRAMMARS))
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


def test_every_grammar_has_a_rendering_here(renderings: ModuleType) -> None:
    assert sorted(renderings.RENDER) == sorted(GRAMMARS)


@given(name=GRAMMAR, calls=CALLS.map(_named_apart), before=st.sampled_from(["", "Look.", "é 👩‍👩‍👧 {x}"]))
@settings(max_examples=250, deadline=None, suppress_health_check=SLOW)
def test_calls_come_back_as_they_were_rendered(
    renderings: ModuleType, name: str, calls: Calls, before: str
) -> None:
    if not renderings.speaks(name, calls):
        return
    if name in {"llama3_json", "harmony"}:
        before = ""
    turn = _parse(name, before + renderings.RENDER[name](calls), calls)
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
def test_a_cut_turn_calls_only_what_was_whole(
    renderings: ModuleType, name: str, calls: Calls, cut: float, reason: str
) -> None:
    if not renderings.speaks(name, calls):
        return
    text = renderings.RENDER[name](calls)
    kept = text[: int(cut * (len(text) - 1))]
    turn = _parse(name, kept, calls, reason)
    found = [(call.name, call.arguments) for call in turn.tool_calls]
    assert found == calls[: len(found)]
    close = renderings.CLOSE.get(name)
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
    toy: ChatCodec, renderings: ModuleType, name: str, calls: Calls, sizes: list[int]
) -> None:
    codec = toy.with_profile(
        replace(toy.profile, tool_grammar=name, reasoning_tags=None if name == "harmony" else THINK)
    )
    text = ("" if name == "llama3_json" else "café 👩‍👩‍👧 ") + renderings.RENDER[name](calls)
    ids: list[int] = []
    position = 0
    for size in sizes:
        ids += toy.encode_plain(text[position : position + size])
        position += size
    ids += toy.encode_plain(text[position:])
    whole = _parse(name, codec.decode(ids), calls)
    assert codec.parse(ids, reasoning_open=False, finish_reason="stop", tools=_tools(calls)) == whole


@pytest.mark.parametrize("name", sorted(GRAMMARS))
def test_hostile_text_is_parsed_in_linear_time(renderings: ModuleType, name: str) -> None:
    one = renderings.RENDER[name]([("f", {"a": "x", "b": [1, {"c": "y"}]})])
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
