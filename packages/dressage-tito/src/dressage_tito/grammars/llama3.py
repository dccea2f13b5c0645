"""Llama 3.1 to 3.3: a turn that is a JSON object with ``name`` and ``parameters``, and nothing else."""

from __future__ import annotations

import re

from dressage_tito.grammars.base import Piece, Reading, ToolGrammar, TurnContext
from dressage_tito.grammars.jsoncall import call_of_object
from dressage_tito.grammars.reasoning import read_reasoning
from dressage_tito.jsonspan import read_object, skip_blank
from dressage_tito.messages import ToolCall

_TAG = "<|python_tag|>"
_LIKE_A_CALL = re.compile(r'\s*\{\s*"(?:(?:name|type|id)"\s*:\s*"|(?:parameters|arguments)"\s*:\s*\{)')
_ARGUMENTS = frozenset({"parameters", "arguments"})
_KEYS = frozenset({"type", "name", "id"}) | _ARGUMENTS


def _read(text: str, context: TurnContext) -> Reading:
    """Objects are calls where they reach from the tag, or the turn's beginning, to the turn's end.

    Several may stand there with ``;`` or blanks between. A JSON answer with other keys is content.
    """
    warnings: list[str] = []
    pieces, position = read_reasoning(text, context, warnings)
    tag = -1 if _LIKE_A_CALL.match(text, position) else text.find(_TAG, position)
    start = position if tag < 0 else tag
    body = position if tag < 0 else tag + len(_TAG)
    found: tuple[list[ToolCall], list[str]] | int | None = None
    if tag >= 0 or _LIKE_A_CALL.match(text, body):
        if not context.tools:
            warnings.append("tool_call_without_tools: the turn writes a call, but no tools were offered")
        else:
            found = _calls(text, body, context)
            warnings += _oddities(text, found, context)
    if not isinstance(found, tuple) or (context.finish_reason != "stop"):
        return Reading((*pieces, *_content(position, len(text))), tuple(warnings))
    call = Piece("call", start, len(text), tuple(found[0]))
    return Reading((*pieces, *_content(position, start), call), (*warnings, *found[1]))


def _oddities(text: str, found: tuple[list[ToolCall], list[str]] | int, context: TurnContext) -> list[str]:
    if isinstance(found, int) and found < len(text):
        return ["malformed_tool_call: a call that does not parse was left in the content"]
    if isinstance(found, int) or context.finish_reason != "stop":
        return ["incomplete_tool_call: a call without its end was left in the content"]
    return []


def _content(start: int, end: int) -> list[Piece]:
    return [Piece("content", start, end)] if start < end else []


def _calls(text: str, position: int, context: TurnContext) -> tuple[list[ToolCall], list[str]] | int:
    """The calls up to the text's end and warnings, or how far they were read."""
    calls: list[ToolCall] = []
    warnings: list[str] = []
    while True:
        found = read_object(text, position)
        if isinstance(found, int):
            return found
        keys = [item.key for item in found[0]]
        call = call_of_object(found[0], context.schemas) if _is_call(keys) else None
        if call is None:
            return min(found[1], len(text) - 1)
        calls.append(call[0])
        warnings += call[1]
        position = skip_blank(text, found[1])
        if position == len(text):
            return calls, warnings
        if text[position] == ";":
            position += 1
        elif text[position] != "{":
            return position


def _is_call(keys: list[str]) -> bool:
    return set(keys) <= _KEYS and "name" in keys and len(_ARGUMENTS & set(keys)) == 1


LLAMA3_JSON = ToolGrammar(
    "llama3_json",
    _read,
    control_literals_needed=(_TAG,),
    around_probe=r"^[\s\S]*<\|end_header_id\|>\s*|<\|(?:eot_id|eom_id|end_of_text)\|>\s*$",
)
