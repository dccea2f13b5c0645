"""Canonical message keys: equal for messages that mean the same to a template, whatever a client did to them.

A key covers role, text (absent, null, "" and one text block are the same), parsed tool arguments (their
numbers as clients in JavaScript have them: 1.0 is 1) and the call that a result answers. Reasoning is left
out of an assistant's key (agents drop it or trim it), and so is white space around its text: keys only find
candidates, ids decide.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence

import orjson
from dressage_tito import Message, ToolCall

from dressage_proxy.surrogates import whole_text

_EXACT = 2**53
"""Whole numbers up to here are what they are in every client."""


def message_key(message: Message) -> str:
    """The key of one message, 32 hex digits."""
    own = message.role == "assistant"
    parts = [
        message.role,
        message.content.strip() if own else message.content,
        [_call(call) for call in message.tool_calls],
        message.tool_call_id,
        message.name,
    ]
    return hashlib.blake2b(_dumps(parts), digest_size=16).hexdigest()


def _dumps(parts: Sequence[object]) -> bytes:
    """One text of a value, however its objects are ordered."""
    try:
        return orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # half surrogate pairs, integers beyond 64 bits
        text = json.dumps(parts, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        return whole_text(text).encode()


def merge_leading_system(messages: Sequence[Message]) -> list[Message]:
    """Leading system and developer messages as one, joined by a blank line: templates take one alone."""
    count = 0
    while count < len(messages) and messages[count].role in ("system", "developer"):
        count += 1
    if count < 2:
        return list(messages)
    text = "\n\n".join(message.content for message in messages[:count])
    return [Message("system", text), *messages[count:]]


def _call(call: ToolCall) -> list[object]:
    arguments = _numbers(call.arguments) if call.arguments else call.arguments_text
    return [call.id, call.name, {} if arguments in ("", "{}") else arguments]


def _numbers(value: object) -> object:
    """A value of JSON with each number as a double has it, and whole where it is."""
    if isinstance(value, Mapping):
        return {name: _numbers(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_numbers(item) for item in value]
    if isinstance(value, int) and abs(value) > _EXACT:
        try:
            return int(float(value))
        except OverflowError:
            return value
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    return value
