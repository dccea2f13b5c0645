"""Canonical message keys: equal for messages that mean the same to a template, whatever a client did to them.

A key covers role, text (absent, null, "" and one text block are the same), parsed tool arguments and the
call that a result answers. Reasoning is left out of an assistant's key (agents drop it or trim it), and so is
white space around its text: keys only find candidates, ids decide.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import orjson
from dressage_tito import Message, ToolCall

from dressage_proxy.surrogates import whole_text


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
    arguments: object = dict(call.arguments) if call.arguments else call.arguments_text
    return [call.id, call.name, {} if arguments in ("", "{}") else arguments]
