"""Request bodies as JSON. An agent sends its whole conversation again each turn and adds to its end: what a
body shares with an earlier one of its session is compared as bytes, and only the rest is parsed."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from dressage_proxy.surrogates import load_json

KEPT_BYTES = 1 << 26
"""What all sessions together may keep; a body after the least used is parsed whole again."""

_KEPT = 4
"""Of one session: its main branch and a few sub-agents at once."""
_WORTH_BYTES = 1 << 13
"""Shorter ones are parsed as quickly."""
_LISTS = frozenset(("messages", "input"))
"""The conversation, by the names that the dialects have for it."""
_REST = rb"\u0000"
"""Stands for the list's name where its rest is parsed. There is no other way to write this character."""
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_OPENING, _CLOSING = b"[{", b"]}"


@dataclass(frozen=True, slots=True)
class _Whole:
    """A body of which nothing but its value is known yet."""

    text: bytes
    value: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Head:
    """A body up to the end of its conversation's last item: ``text``, which holds the members ``before`` the
    conversation, and its ``items``."""

    text: bytes
    before: Mapping[str, Any]
    name: str
    items: list[Any]


class Bodies:
    """The last few bodies of each session. Used from one event loop; what it gives must not be changed."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._limit = kept_bytes
        self._kept: OrderedDict[str, list[_Whole | _Head]] = OrderedDict()
        self.nbytes = 0

    def load(self, session_id: str, data: bytes) -> tuple[Any, bool]:
        """The value of a body, and whether half a surrogate pair in it was replaced. Raises ValueError."""
        if len(data) < _WORTH_BYTES:
            return load_json(data)
        for old in self._kept.get(session_id, ()):
            head = _looked_into(old, data) if isinstance(old, _Whole) else old
            if head is None or not data.startswith(head.text):
                continue
            value = _continued(head, data)
            if value is not None:
                end = _list_end(data, len(head.text))
                self._keep(
                    session_id, old, _Head(data[:end].rstrip(), head.before, head.name, value[head.name])
                )
                return value, False
        value, mended = load_json(data)
        if isinstance(value, dict) and not mended:
            self._keep(session_id, None, _Whole(data, value))
        return value, mended

    def forget(self, session_id: str) -> None:
        """Keep nothing of a session."""
        self.nbytes -= sum(len(body.text) for body in self._kept.pop(session_id, ()))

    def _keep(self, session_id: str, old: _Whole | _Head | None, new: _Whole | _Head) -> None:
        """The new one takes the place of the one that it goes on from."""
        before = self._kept.pop(session_id, [])
        after = [new, *(body for body in before if body is not old)][:_KEPT]
        self._kept[session_id] = after
        self.nbytes += sum(len(body.text) for body in after) - sum(len(body.text) for body in before)
        while self.nbytes > self._limit:
            self.forget(next(iter(self._kept)))


def _looked_into(whole: _Whole, data: bytes) -> _Head | None:
    """The head of a whole body, where another one begins alike: to look takes longer than to parse."""
    half = len(whole.text) // 2
    return _head(whole) if data[:half] == whole.text[:half] else None


def _continued(head: _Head, data: bytes) -> dict[str, Any] | None:
    """The value of a body that begins as ``head``; None where it does not go on as a list and an object do.

    After ``head`` a JSON text is inside the list, behind an item. So where the rest of a list and of an
    object follow, the whole is JSON, and its value is what both parts say.
    """
    tail = data[len(head.text) :]
    if _REST in tail:
        return None
    try:
        rest = orjson.loads(b'{"' + _REST + b'":[null' + tail)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(rest, dict) or head.name in rest:  # named twice: the later one counts
        return None
    _, *new = rest.pop("\0")
    return {**head.before, head.name: [*head.items, *new], **rest}


def _head(whole: _Whole) -> _Head | None:
    """The head of a body; None where it has no conversation, or names it twice."""
    found: list[tuple[str, int, int]] = []
    depth, key, key_at = 0, b"", 0
    for token in _TOKEN.finditer(whole.text):
        mark = whole.text[token.start()]
        if mark in _OPENING:
            depth += 1
            if depth == 2 and mark == _OPENING[0]:
                name = orjson.loads(key)
                if name in _LISTS:
                    found.append((name, key_at, token.end()))
        elif mark in _CLOSING:
            depth -= 1
        elif depth == 1:
            key, key_at = token.group(), token.start()
    if len(found) != 1:
        return None
    name, name_at, start = found[0]
    items = whole.value[name]
    if not isinstance(items, list) or not items:
        return None
    text = whole.text[: _list_end(whole.text, start)].rstrip()
    before = orjson.loads(whole.text[:name_at].rstrip().removesuffix(b",") + b"}")
    return _Head(text, before, name, items)


def _list_end(data: bytes, start: int) -> int:
    """Where the list closes that ``start`` is in, between two of its items. ``data`` is JSON."""
    depth = 0
    for token in _TOKEN.finditer(data, start):
        mark = data[token.start()]
        if mark in _OPENING:
            depth += 1
        elif mark in _CLOSING:
            depth -= 1
            if depth < 0:
                return token.start()
    raise ValueError("the list has no end")
