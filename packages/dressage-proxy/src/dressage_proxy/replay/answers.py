"""What the scripted engine samples for a recorded call: tokens that parse to the recorded answer.

The text is the answer as the model's own template writes it; its segmentation is not the tokenizer's own, so
that a turn that is tokenised again would show.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dressage_tito import ChatCodec, Message, Refusal, Tool, ToolCall, message_from_json, reply_text

from dressage_proxy.dialects.base import ModelRequest
from dressage_proxy.errors import ProxyError
from dressage_proxy.replay.traffic import Call

_PIECE = 3
_PLAIN_ANSWER = "That is done."
_MORE = " And there was more."
_REWRITTEN = {"invalid": "tool"}
"""Names that agents give to a call which they could not make -> the argument that has the call's own name."""
_BEFORE = (Message("user", "Go on."),)


class UnwritableError(ProxyError):
    """The model's grammar cannot say what was recorded."""


@dataclass(frozen=True, slots=True)
class Script:
    """A reply to sample. ``kept`` of its ids are what the client will have, where its stream is cut."""

    ids: tuple[int, ...]
    kept: int | None = None


def script(codec: ChatCodec, call: Call) -> Script:
    """The reply to one call. Raises UnwritableError."""
    assert call.request is not None
    tools = call.request.tools or None
    said = _said(codec, call.echo)
    text, close = _written(codec, said, tools)
    if call.echo is None or not call.row.answer.startswith("!cut"):
        return Script(tuple(odd_ids(codec, text)))
    kept = text.removesuffix(close).rstrip()
    ids = odd_ids(codec, kept)
    return Script((*ids, *odd_ids(codec, _more(codec, said, call.request, kept))), len(ids))


def _written(codec: ChatCodec, message: Message, tools: Sequence[Tool] | None) -> tuple[str, str]:
    written = reply_text(codec, _BEFORE, message, tools)
    if isinstance(written, Refusal):
        raise UnwritableError(f"{written.reason}: {written.detail}")
    return written


def _said(codec: ChatCodec, echo: Mapping[str, Any] | None) -> Message:
    if echo is None:
        return Message("assistant", _PLAIN_ANSWER)
    calls = []
    for number, call in enumerate(echo.get("tool_calls") or []):
        function = _function(call["function"])
        own_id = codec.native_call_id(function["name"], number) or call["id"]
        calls.append({"id": own_id, "type": "function", "function": function})
    return message_from_json({**echo, "tool_calls": calls})


def _function(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """A call as the model wrote it before a client repaired or renamed it."""
    name, arguments = function["name"], function["arguments"]
    try:
        parsed = json.loads(arguments)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        parsed, arguments = {}, json.dumps({"raw": str(arguments)})
    if name in _REWRITTEN and isinstance(parsed.get(_REWRITTEN[name]), str):
        name, arguments = parsed[_REWRITTEN[name]], '{"x": 1}'
    return {"name": name, "arguments": arguments}


def _more(codec: ChatCodec, said: Message, request: ModelRequest, kept: str) -> str:
    """What a reply said after the client's stream was cut: one call more, where the grammar takes it."""
    if request.tools:
        name = request.tools[0]["function"]["name"]
        call = ToolCall(codec.native_call_id(name, len(said.tool_calls)), name, {}, "{}")
        whole = reply_text(codec, _BEFORE, replace(said, tool_calls=(*said.tool_calls, call)), request.tools)
        if not isinstance(whole, Refusal) and whole[0].startswith(kept):
            return whole[0].removeprefix(kept)
    close = reply_text(codec, _BEFORE, Message("assistant", _PLAIN_ANSWER), request.tools or None)
    assert not isinstance(close, Refusal)
    return _MORE + close[1]


def odd_ids(codec: ChatCodec, text: str) -> list[int]:
    """Ids of a text, cut every few characters between control literals: not the tokenizer's own."""
    literals = sorted(codec.control_literals, key=len, reverse=True)
    ids: list[int] = []
    for part in re.split("(" + "|".join(map(re.escape, literals)) + ")", text):
        size = len(part) if part in codec.control_literals else _PIECE
        for start in range(0, len(part), size or 1):
            ids += codec.encode_sample(part[start : start + size])
    return ids if codec.decode(ids) == text else codec.encode_sample(text)
