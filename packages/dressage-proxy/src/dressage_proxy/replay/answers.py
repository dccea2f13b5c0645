"""What the scripted engine samples for a recorded call: tokens that parse to the recorded answer.

The text is the answer in the model's grammar; its segmentation is not the tokenizer's own, so that a turn
that is tokenised again would show.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dressage_tito import ChatCodec

from dressage_proxy.dialects.base import ModelRequest
from dressage_proxy.replay.traffic import Call

_PIECE = 3
_PLAIN_ANSWER = "That is done."
_REWRITTEN = {"invalid": "tool"}
"""Names that agents give to a call which they could not make -> the argument that has the call's own name."""


@dataclass(frozen=True, slots=True)
class Script:
    """A reply to sample. ``kept`` of its ids are what the client will have, where its stream is cut."""

    ids: tuple[int, ...]
    kept: int | None = None


def script(codec: ChatCodec, call: Call, prompt_tail: str) -> Script:
    """The reply to one call; ``prompt_tail`` is the end of its prompt's text."""
    assert call.request is not None
    close = codec.decode([codec.stop_token_ids[0]])
    text = _text(call.echo, opened=prompt_tail.rstrip().endswith("<think>"))
    ids = _ids(codec, text)
    if call.echo is not None and call.row.answer.startswith("!cut"):
        return Script((*ids, *_ids(codec, _more(call.request) + close)), len(ids))
    return Script((*ids, *_ids(codec, close)))


def _text(echo: Mapping[str, Any] | None, *, opened: bool) -> str:
    if echo is None:
        return ("\n</think>\n\n" if opened else "") + _PLAIN_ANSWER
    reasoning, content = echo.get("reasoning_content") or "", echo.get("content") or ""
    text = "" if opened else "<think>\n"
    text = text + reasoning + "\n</think>\n\n" if reasoning or opened else ""
    text += content
    for call in echo.get("tool_calls") or []:
        text += ("\n" if text else "") + _call(call["function"])
    return text


def _call(function: Mapping[str, Any]) -> str:
    """A call in the Hermes grammar, as the model wrote it before a client repaired or renamed it."""
    name, arguments = function["name"], function["arguments"]
    try:
        parsed = json.loads(arguments)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        parsed, arguments = {}, json.dumps({"raw": str(arguments)})
    if name in _REWRITTEN and isinstance(parsed.get(_REWRITTEN[name]), str):
        name, arguments = parsed[_REWRITTEN[name]], '{"x": 1}'
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'


def _more(request: ModelRequest) -> str:
    """What a reply said after the client's stream was cut."""
    if not request.tools:
        return " And there was more."
    name = request.tools[0]["function"]["name"]
    return f'\n<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {{}}}}\n</tool_call>'


def _ids(codec: ChatCodec, text: str) -> list[int]:
    """Ids of a text, cut every few characters between control literals."""
    literals = sorted(codec.control_literals, key=len, reverse=True)
    ids: list[int] = []
    for part in re.split("(" + "|".join(map(re.escape, literals)) + ")", text):
        size = len(part) if part in codec.control_literals else _PIECE
        for start in range(0, len(part), size or 1):
            ids += codec.encode_sample(part[start : start + size])
    return ids if codec.decode(ids) == text else codec.encode_sample(text)
