"""Blocks of a system prompt that change from request to request and mean nothing to the model (case C21).

Each pattern is anchored at the start of a text block of a system or developer message. The first value that a
session sends is kept for all its requests, so that the prompt's ids stay the same. The same words anywhere
else, and any other change, are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

VOLATILE: Mapping[str, re.Pattern[str]] = {
    "billing": re.compile(r"x-[a-z0-9-]*billing[a-z0-9-]*:[^\n]*"),
    "date": re.compile(r"(?:Today(?:'s date)?|Current date(?: and time)?|The current date)(?: is)?:? [^\n]*"),
}


def pin_volatile(pinned: MutableMapping[str, str], raw: Sequence[Any]) -> list[Any]:
    """``raw`` messages with volatile blocks replaced by the session's first value (noted in ``pinned``)."""
    return [_message(pinned, message) for message in raw]


def _message(pinned: MutableMapping[str, str], message: Any) -> Any:
    if not isinstance(message, dict) or message.get("role") not in ("system", "developer"):
        return message
    content = message.get("content")
    if isinstance(content, str):
        return _changed(message, content, _text(pinned, content))
    if isinstance(content, list):
        return {**message, "content": [_block(pinned, block) for block in content]}
    return message


def _block(pinned: MutableMapping[str, str], block: Any) -> Any:
    if isinstance(block, dict) and isinstance(block.get("text"), str):
        text = _text(pinned, block["text"])
        return block if text == block["text"] else {**block, "text": text}
    return block


def _changed(message: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    return message if new == old else {**message, "content": new}


def _text(pinned: MutableMapping[str, str], text: str) -> str:
    for name, pattern in VOLATILE.items():
        found = pattern.match(text)
        if found:
            return pinned.setdefault(name, found.group()) + text[found.end() :]
    return text
