"""Lines of a system prompt that change from request to request and mean nothing to the model.

Each pattern is anchored at the start of a text block of a system or developer message, or of a line behind
one that another pattern took. The first value that a session sends is kept for all its requests, so that the
prompt's ids stay the same; a message in mid-conversation has a first value of its own place, since a later
one there is news. The same words anywhere else, and any other change, are left alone.
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
    rf"(?:{_DAY}|{_MONTH}|\d{{1,4}}[-/:.]\d[\w:/+.-]*|\d{{4}}|\d{{10,13}}"
    rf"|\d{{1,2}}(?:st|nd|rd|th)?\.?(?: of)? (?:{_MONTH}|may))\b"
)
_NEXT = (
    rf"(?:{_DAY}|{_MONTH}|may|\d[\w:/+.-]*|the|of|at|am|pm|utc|gmt|z|cet|cest|[ecmp][sd]t|[a-z]+/[a-z_]+)\b"
)
_DATE = rf"(?:the )?{_FIRST}(?:[ ,.;()\u2013-]+{_NEXT})*[.)]*"
"""A date or a time and nothing else: what follows in the same line may be news."""
_CLOCK = (
    r"Today(?:['\u2019]s date)?|It is (?:now|currently)|(?:date|time|datetime|timestamp|now)(?=:)"
    r"|(?:The )?current (?:(?:local|system|utc) )?"
    r"(?:date(?: ?(?:and|&|/)? ?time)?|time(?: ?(?:and|&|/) ?date)?|timestamp|day)"
)
_ZONE = r"(?: \([a-z0-9_/+: -]{1,32}\))?"

# Of a bounded length: what is tried grows with its square, and an agent's text may be of any size.
_HEADER = r"x-[a-z0-9-]{0,48}(?:billing|telemetry|attribution|nonce|trace|request-id)[a-z0-9-]{0,48}(?=[: ])"
VOLATILE: Mapping[str, re.Pattern[str]] = {
    "billing": re.compile(rf"(?P<label>{_HEADER})[^\n]*", re.IGNORECASE),
    "date": re.compile(rf"(?P<label>{_CLOCK}){_ZONE}(?: is)?:? {_DATE}", re.IGNORECASE),
}
_GAP = re.compile(r"\s*")


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
    kept, at = "", 0
    while True:
        start = _match(_GAP, text, at).end()
        if at and "\n" not in text[at:start]:  # what follows in the same line may be news
            break
        named = ((name, pattern.match(text, start)) for name, pattern in VOLATILE.items())
        name, found = next(((name, found) for name, found in named if found), ("", None))
        if found is None:
            break
        label = " ".join(found["label"].casefold().split())
        kept += text[at:start] + pinned.setdefault(f"{name}:{label}{place}", found.group())
        at = found.end()
    return kept + text[at:]


def _match(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str]:
    found = pattern.match(text, at)
    assert found is not None  # it matches nothing too
    return found
