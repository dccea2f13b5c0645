"""Blocks of a system prompt that change from request to request and mean nothing to the model.

Each pattern is anchored at the start of a text block of a system or developer message. The first value that a
session sends is kept for all its requests, so that the prompt's ids stay the same; a message in
mid-conversation has a first value of its own place, since a later one there is news. The same words anywhere
else, and any other change, are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

_DAY = r"(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?"
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may(?= \d)|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_FIRST = (
    rf"(?:{_DAY}|{_MONTH}|\d{{1,4}}[-/:.]\d[\w:/+.-]*|\d{{4}}"
    rf"|\d{{1,2}}(?:st|nd|rd|th)?\.?(?: of)? (?:{_MONTH}|may))\b"
)
_NEXT = (
    rf"(?:{_DAY}|{_MONTH}|may|\d[\w:/+.-]*|the|of|at|am|pm|utc|gmt|z|cet|cest|[ecmp][sd]t|[a-z]+/[a-z_]+)\b"
)
_DATE = rf"(?:the )?{_FIRST}(?:[ ,.;()\u2013-]+{_NEXT})*[.)]*"
"""A date or a time and nothing else: what follows in the same line may be news."""

VOLATILE: Mapping[str, re.Pattern[str]] = {
    "billing": re.compile(r"x-[a-z0-9-]*billing[a-z0-9-]*[: ][^\n]*"),
    "date": re.compile(
        r"(?:Today(?:['\u2019]s date)?|(?:The )?current date(?: and time)?)(?: is)?:? " + _DATE, re.IGNORECASE
    ),
}


def pin_volatile(pinned: MutableMapping[str, str], raw: Sequence[Any]) -> list[Any]:
    """``raw`` messages with volatile blocks replaced by the session's first value (noted in ``pinned``)."""
    result, leading = [], True
    for index, message in enumerate(raw):
        role = message.get("role") if isinstance(message, dict) else None
        if role in ("system", "developer"):
            message = _message(pinned, message, "" if leading else f"@{index}")
        else:
            leading = False
        result.append(message)
    return result


def _message(pinned: MutableMapping[str, str], message: dict[str, Any], place: str) -> Any:
    content = message.get("content")
    if isinstance(content, str):
        text = _text(pinned, content, place)
        return message if text == content else {**message, "content": text}
    if isinstance(content, list):
        return {**message, "content": [_block(pinned, block, place) for block in content]}
    return message


def _block(pinned: MutableMapping[str, str], block: Any, place: str) -> Any:
    if isinstance(block, dict) and isinstance(block.get("text"), str):
        text = _text(pinned, block["text"], place)
        return block if text == block["text"] else {**block, "text": text}
    return block


def _text(pinned: MutableMapping[str, str], text: str, place: str) -> str:
    for name, pattern in VOLATILE.items():
        found = pattern.match(text)
        if found:
            return pinned.setdefault(name + place, found.group()) + text[found.end() :]
    return text
