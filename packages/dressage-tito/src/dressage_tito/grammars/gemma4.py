"""Gemma 4: ``<|tool_call>call:name{key:<|"|>text<|"|>,n:1}<tool_call|>``."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from typing import Any, ClassVar

from dressage_tito.grammars.base import ToolGrammar, TurnContext
from dressage_tito.grammars.jsoncall import typed_call
from dressage_tito.grammars.scan import Broken, CallFinder, Found, reader
from dressage_tito.grammars.values import parameter_names
from dressage_tito.jsonspan import read_value

_CLOSE = "<tool_call|>"
_QUOTE = '<|"|>'
_HEAD = re.compile(r"\s*call:(?P<name>[^\s{}<>\"]+)(?=\{)")
_KEY = re.compile(r"(?P<key>[^:,{}\[\]]*+):")
_BLANK = re.compile(r"\s*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?=\s*+[,}\]])")
_WORD = re.compile(r"(?P<word>null|None|true|True|false|False)(?=\s*+[,}\]])")
_WORDS: dict[str, tuple[Any, str]] = {
    "null": (None, "null"),
    "None": (None, "null"),
    "true": (True, "true"),
    "True": (True, "true"),
    "false": (False, "false"),
    "False": (False, "false"),
}
_NEXT_CALL = re.compile(r"<tool_call\|>\s*+<\|tool_call>\s*+call:")
_MAX_DEPTH = 200
_MAX_DIGITS = 4000


class _Stop(Exception):  # noqa: N818 - it ends a reading and is no error
    def __init__(self, position: int) -> None:
        self.position = position


class _Finder(CallFinder):
    opening: ClassVar[str] = re.escape("<|tool_call>")
    before: ClassVar[tuple[str, ...]] = ()

    def __init__(self, text: str, context: TurnContext) -> None:
        super().__init__(text, context)
        self._ends: list[int] | None = None
        self._names: tuple[str, ...] = ()

    def find(self, start: int, after: int) -> Found | Broken:
        head = _HEAD.match(self.text, after)
        if head is None:
            return Broken(after, _CLOSE, begun=False)
        self._names = _odd_names(self.context.schemas.get(head["name"]))
        try:
            value, spelled, end = self._object(head.end(), 0)
        except _Stop as stop:
            return Broken(stop.position, _CLOSE)
        call, warnings = typed_call("", head["name"], value, spelled, self.context.schemas)
        return self.closed((call,), end, _CLOSE, warnings)

    def _skip(self, position: int) -> int:
        blank = _BLANK.match(self.text, position)
        return blank.end() if blank else position

    def _value(self, position: int, depth: int) -> tuple[Any, str, int]:
        """A value, its JSON text (numbers as they are spelled), and where it ends."""
        if self.text.startswith(_QUOTE, position):
            string, end = self._string(position)
            return string, json.dumps(string, ensure_ascii=False), end
        if depth < _MAX_DEPTH and self.text.startswith("{", position):
            return self._object(position, depth + 1)
        if depth < _MAX_DEPTH and self.text.startswith("[", position):
            return self._array(position, depth + 1)
        if word := _WORD.match(self.text, position):
            return *_WORDS[word["word"]], word.end()
        number = _NUMBER.match(self.text, position)
        found = read_value(number.group(), 0) if number else None
        if number is None or found is None or number.end() - position > _MAX_DIGITS:
            raise _Stop(position)
        return found[0], number.group(), number.end()

    def _object(self, position: int, depth: int) -> tuple[dict[str, Any], str, int]:
        members: dict[str, Any] = {}
        spelled: list[str] = []
        position = self._skip(position + 1)
        while not self.text.startswith("}", position):
            key, position = self._key(position)
            members[key], text, position = self._value(self._skip(position), depth)
            spelled.append(f"{json.dumps(key, ensure_ascii=False)}: {text}")
            position = self._next(position, "}")
        return members, "{" + ", ".join(spelled) + "}", position + 1

    def _array(self, position: int, depth: int) -> tuple[list[Any], str, int]:
        items: list[Any] = []
        spelled: list[str] = []
        position = self._skip(position + 1)
        while not self.text.startswith("]", position):
            item, text, position = self._value(position, depth)
            items.append(item)
            spelled.append(text)
            position = self._next(position, "]")
        return items, "[" + ", ".join(spelled) + "]", position + 1

    def _next(self, position: int, close: str) -> int:
        """Past a comma, or at the closing bracket."""
        position = self._skip(position)
        if self.text.startswith(close, position):
            return position
        after = self._skip(position + 1)
        if not self.text.startswith(",", position) or self.text.startswith(close, after):
            raise _Stop(position)
        return after

    def _key(self, position: int) -> tuple[str, int]:
        if self.text.startswith(_QUOTE, position):
            key, end = self._string(position)
            end = self._skip(end)
            if self.text.startswith(":", end):
                return key, end + 1
            raise _Stop(end)
        for name in self._names:
            if self.text.startswith(f"{name}:", position):
                return name, position + len(name) + 1
        match = _KEY.match(self.text, position)
        if match is None:
            raise _Stop(position)
        return match["key"].strip(), match.end()

    def _string(self, position: int) -> tuple[str, int]:
        """A text ends at the first quote after which a value can end: one in mid-text is a part of it."""
        if self._ends is None:
            marks = re.finditer(re.escape(_QUOTE) + r"(?=\s*+[,}\]:])", self.text)
            self._ends = [mark.start() for mark in marks]
        start = position + len(_QUOTE)
        index = bisect_left(self._ends, start)
        if index == len(self._ends):
            swallowed = _NEXT_CALL.search(self.text, start)
            raise _Stop(swallowed.start() if swallowed else len(self.text))
        end = self._ends[index]
        if swallowed := _NEXT_CALL.search(self.text, start, end):
            # The text has lost its closing mark, and must not swallow the next call.
            raise _Stop(swallowed.start())
        return self.text[start:end], end + len(_QUOTE)


def _odd_names(schema: object) -> tuple[str, ...]:
    """The tool's parameters whose names hold what ends a name elsewhere, the longest first."""
    odd = [name for name in parameter_names(schema) if not _KEY.fullmatch(f"{name}:")]
    return tuple(sorted(odd, key=len, reverse=True))


GEMMA4 = ToolGrammar("gemma4", reader(_Finder), control_literals_needed=("<|tool_call>", _CLOSE, _QUOTE))
