"""Request bodies as JSON. An agent sends its whole conversation again each turn and adds to its end: what a
body shares with an earlier one of its session is compared as bytes, and only what was added is parsed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from dressage_proxy.records import record
from dressage_proxy.surrogates import load_json

KEPT_BYTES = 1 << 27
"""What all sessions together may keep; a body after the least used is parsed whole again."""

_KEPT = 4
"""Of one session: its main branch and a few sub-agents at once."""
_WORTH_BYTES = 1 << 14
"""Shorter ones are parsed as quickly."""
_ITEM_BYTES = 1 << 6
"""What a value takes beside its text, about: an agent may well send lists of nothing."""


def _size(data: bytes) -> int:
    """The bytes that a body takes with its value, about."""
    return len(data) + _ITEM_BYTES * (len(data) - len(data.translate(None, b"[{,")))


@record
class _Whole:
    """A body of which nothing but its value is known."""

    data: bytes
    size: int
    value: Mapping[str, Any]


@record
class _Open:
    """A body, and the place in it where its conversation, a list of its object, closes: what is put in there
    adds items. The members ``before`` and ``after`` this list, its ``name`` and its ``items``."""

    data: bytes
    size: int
    end: int
    before: Mapping[str, Any]
    name: str
    items: list[Any]
    after: Mapping[str, Any]

    def more(self, data: bytes) -> _Open | None:
        """A body that differs from this one by further items alone; None for another one."""
        added = len(data) - len(self.data)
        known = memoryview(self.data)
        if added < 0 or not data.startswith(known[: self.end]) or not data.endswith(known[self.end :]):
            return None
        end = self.end + added
        between = data[self.end : end]
        try:
            _, *new = orjson.loads(b"[null" + between + b"]")
        except orjson.JSONDecodeError:
            return None
        size = self.size + _size(between)
        return _Open(data, size, end, self.before, self.name, [*self.items, *new], self.after)

    @property
    def value(self) -> dict[str, Any]:
        """What the body says. Of members with one name the last one counts."""
        return {**self.before, self.name: self.items, **self.after}


class Bodies:
    """The last few bodies of each session. Used from one event loop; what it gives must not be changed."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._limit = kept_bytes
        self._kept: OrderedDict[str, list[_Whole | _Open]] = OrderedDict()
        self.nbytes = 0

    def load(self, session_id: str, data: bytes) -> tuple[Any, bool]:
        """The value of a body, and whether half a surrogate pair in it was replaced. Raises ValueError."""
        if len(data) < _WORTH_BYTES:
            return load_json(data)
        kept = self._kept.get(session_id, ())
        for old in kept:
            more = old.more(data) if isinstance(old, _Open) else None
            if more is not None:
                self._keep(session_id, old, more)
                return more.value, False
        value, mended = load_json(data)
        if isinstance(value, dict) and not mended:
            whole = _Whole(data, _size(data), value)
            grown = ((old, _opened(old, whole)) for old in kept if isinstance(old, _Whole))
            old_one, new = next(((old, new) for old, new in grown if new is not None), (None, whole))
            self._keep(session_id, old_one, new)
        return value, mended

    def forget(self, session_id: str) -> None:
        """Keep nothing of a session."""
        self.nbytes -= sum(body.size for body in self._kept.pop(session_id, ()))

    def _keep(self, session_id: str, old: _Whole | _Open | None, new: _Whole | _Open) -> None:
        """The new one takes the place of the one that it goes on from."""
        before = self._kept.pop(session_id, [])
        after = [new, *(body for body in before if body is not old)][:_KEPT]
        self._kept[session_id] = after
        self.nbytes += sum(body.size for body in after) - sum(body.size for body in before)
        while self.nbytes > self._limit:
            self.forget(next(iter(self._kept)))


def _opened(old: _Whole, new: _Whole) -> _Open | None:
    """The new body with the place where it may go on, if it is the old one with items added to the end of a
    list of its object; None where it is not.

    That the place is behind an item of such a list shows where the text before it ends: closing a list and an
    object makes JSON of it. That this is the list of that name shows in the value of the whole.
    """
    end = _first_difference(old.data, new.data)
    if new.data[end : end + 1] != b"," or not new.data.endswith(memoryview(old.data)[end:]):
        return None
    try:
        before = orjson.loads(old.data[:end] + b"]}")
        after = orjson.loads(b'{"":[null' + old.data[end:])
    except orjson.JSONDecodeError:
        return None
    name = next(reversed(before), "")
    items = before.pop(name, None)
    if not isinstance(items, list) or not isinstance(after, dict):
        return None
    if after.pop("") != [None]:  # a member of that name follows
        return None
    opened = _Open(old.data, old.size, end, before, name, items, after).more(new.data)
    return opened if opened is not None and opened.value == new.value else None


def _first_difference(one: bytes, two: bytes) -> int:
    size = min(len(one), len(two))
    differs = np.frombuffer(one, np.uint8, size) != np.frombuffer(two, np.uint8, size)
    return int(differs.argmax()) if size and differs.any() else size
