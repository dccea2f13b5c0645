"""Python literals inside a longer text, as values and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from dressage_tito.jsonspan import read_value

_BLANK = re.compile(r"\s*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?=\s*+[,)\]}])")
_WORD = re.compile(r"(?:null|None|true|True|false|False)(?=\s*+[,)\]}])")
_WORDS: dict[str, Any] = {
    "null": None,
    "None": None,
    "true": True,
    "True": True,
    "false": False,
    "False": False,
}
_KEYWORD = r"[^\s()\[\]{}=,'\"]+"
_AFTER_ITEM = re.compile(r"\s*+[,)\]}:]")
_NEVER = re.compile(r"(?!)")
_TRIPLE = ("'''", '"""')
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\n": "", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_MAX_DEPTH = 200
_MAX_DIGITS = 4000


class Stop(Exception):  # noqa: N818 - it ends a reading and is no error
    """No whole literal; ``position`` is how far the text was read."""

    def __init__(self, position: int) -> None:
        self.position = position


def read_literal(text: str) -> Any:
    """The Python list, tuple (as a list) or dict with names as keys that ``text`` is. Raises Stop."""
    if text[:1] not in ("[", "(", "{"):
        raise Stop(0)
    value, _, end = PythonReader(text, _NEVER, strict=True).literal(0)
    if end < len(text):
        raise Stop(end)
    return value


class PythonReader:
    """Reads literals. Containers may be JSON, since templates print them so."""

    def __init__(
        self, text: str, barrier: re.Pattern[str], *, strict: bool = False, names: Sequence[str] = ()
    ) -> None:
        """No string goes over a ``barrier``: there it has lost its closing quote. A ``strict`` reader takes
        no bare quote for a part of the string. ``names`` are arguments' that are no keywords of Python."""
        keyword = "|".join([*map(re.escape, names), _KEYWORD])
        self._after_argument = re.compile(rf"\s*+(?:,?\s*+\)\s*+[,\]]|,\s*+(?:{keyword})\s*+=)")
        self._text = text
        self._barrier = barrier
        self._strict = strict

    def literal(self, position: int) -> tuple[Any, str, int]:
        """The literal that begins here, its JSON text, and where it ends. Raises Stop."""
        return self._value(position, 0, _AFTER_ITEM)

    def argument(self, position: int) -> tuple[Any, str, int]:
        """A keyword argument's value, its JSON text, and where it ends. Raises Stop."""
        if self._text[position : position + 1] in {"{", "["}:
            found = read_value(self._text, position)
            if found is not None:
                return found[0], self._text[position : found[1]], found[1]
        return self._value(position, 0, self._after_argument)

    @staticmethod
    def quoted(text: str) -> str:
        """A text as a JSON string."""
        return json.dumps(text, ensure_ascii=False)

    def _value(self, position: int, depth: int, after: re.Pattern[str]) -> tuple[Any, str, int]:
        mark = self._text[position : position + 1]
        raw = mark in {"r", "R"} and self._text[position + 1 : position + 2] in {"'", '"'}
        if raw or mark in {"'", '"'}:
            string, end = self._string(position + raw, after)
            string = string if raw else _ESCAPE.sub(_unescape, string)
            return string, self.quoted(string), end
        if depth < _MAX_DEPTH and mark == "{":
            return self._dict(position, depth + 1)
        if depth < _MAX_DEPTH and mark == "[":
            return self._list(position, depth + 1, "]")
        if depth < _MAX_DEPTH and mark == "(":
            return self._tuple(position, depth + 1)
        if word := _WORD.match(self._text, position):
            value = _WORDS[word.group()]
            return value, json.dumps(value), word.end()
        number = _NUMBER.match(self._text, position)
        found = read_value(number.group(), 0) if number else None
        if number is None or found is None or number.end() - position > _MAX_DIGITS:
            raise Stop(position)
        return found[0], number.group(), number.end()

    def _tuple(self, position: int, depth: int) -> tuple[Any, str, int]:
        """A tuple as a list, or what stands in brackets alone."""
        items, text, end = self._list(position, depth, ")")
        alone = len(items) == 1 and self._text[position + 1 : end - 1].rstrip()[-1:] != ","
        return (items[0], text[1:-1], end) if alone else (items, text, end)

    def _list(self, position: int, depth: int, close: str) -> tuple[list[Any], str, int]:
        items: list[Any] = []
        spelled: list[str] = []
        position = self._skip(position + 1)
        while not self._text.startswith(close, position):
            item, text, position = self._value(position, depth, _AFTER_ITEM)
            items.append(item)
            spelled.append(text)
            position = self._next(position, close)
        return items, "[" + ", ".join(spelled) + "]", position + 1

    def _dict(self, position: int, depth: int) -> tuple[dict[str, Any], str, int]:
        members: dict[str, Any] = {}
        spelled: list[str] = []
        position = self._skip(position + 1)
        while not self._text.startswith("}", position):
            key, text, position = self._value(position, depth, _AFTER_ITEM)
            position = self._skip(position)
            if not isinstance(key, str) or not self._text.startswith(":", position):
                raise Stop(position)
            members[key], value, position = self._value(self._skip(position + 1), depth, _AFTER_ITEM)
            spelled.append(f"{text}: {value}")
            position = self._next(position, "}")
        return members, "{" + ", ".join(spelled) + "}", position + 1

    def _next(self, position: int, close: str) -> int:
        """Past a comma, or at the closing bracket."""
        position = self._skip(position)
        if self._text.startswith(",", position):
            return self._skip(position + 1)
        if not self._text.startswith(close, position):
            raise Stop(position)
        return position

    def _skip(self, position: int) -> int:
        blank = _BLANK.match(self._text, position)
        return blank.end() if blank else position

    def _string(self, position: int, after: re.Pattern[str]) -> tuple[str, int]:
        """What stands between the quotes, and where they end: at the first one after which a value can end.

        Some templates print strings without escaping them: a quote in mid-text is a part of it.
        """
        quote = self._text[position]
        if self._text.startswith(_TRIPLE, position):
            try:
                return self._until(position, quote * 3, after)
            except Stop:
                if self._strict:
                    raise
        return self._until(position, quote, after)

    def _until(self, position: int, close: str, after: re.Pattern[str]) -> tuple[str, int]:
        inside = rf"[^{close[0]}\\]" if len(close) == 1 else rf"(?:[^{close[0]}\\]|{close[0]}(?!{close[1:]}))"
        step = re.compile(rf"{inside}*+(?:\\[\s\S]{inside}*+)*+{close}")
        start = end = position + len(close)
        while match := step.match(self._text, end):
            if swallowed := self._barrier.search(self._text, end, match.end()):
                raise Stop(swallowed.start())
            end = match.end()
            if self._strict or after.match(self._text, end):
                return self._text[start : end - len(close)], end
        swallowed = self._barrier.search(self._text, end)
        raise Stop(swallowed.start() if swallowed else len(self._text))


def _unescape(match: re.Match[str]) -> str:
    """What a Python string escape spells; an unknown one stands for itself."""
    escape = match.group()[1:]
    if escape in {"\\", "'", '"'}:
        return escape
    if escape in _ESCAPES:
        return _ESCAPES[escape]
    if escape[0] in "xuU" and len(escape) > 1:
        code = int(escape[1:], 16)
        # Half of a surrogate pair is no character: no encoding could write it.
        return chr(code) if code < 0xD800 or 0xDFFF < code < 0x110000 else match.group()
    if escape[0] in "01234567":
        return chr(int(escape, 8))
    return match.group()
