"""JSON objects inside a longer text, with the places of their values."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn

_BLANK = re.compile(r"[ \t\r\n]*")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no finite number")
    return value


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)


@dataclass(frozen=True, slots=True)
class JsonItem:
    """A member of an object: its value and the value's own text."""

    key: str
    value: Any
    text: str


def read_object(text: str, position: int) -> tuple[list[JsonItem], int] | int:
    """The members of the object that begins at ``position`` (blanks may come first) and where it ends.

    Strings are read as JSON strings, so that a markup tag inside one is just text. Where no whole, valid
    object stands there: how far the text was read, which is its end where a string has none.
    """
    start = position
    try:
        return _read_object(text, position)
    except json.JSONDecodeError as error:
        return len(text) if error.msg.startswith("Unterminated string") else error.pos
    except (ValueError, RecursionError):
        return start


def read_value(text: str, position: int) -> tuple[Any, int] | None:
    """The JSON value that begins exactly at ``position`` and where it ends; None where none stands there."""
    try:
        return _DECODER.raw_decode(text, position)
    except (ValueError, RecursionError):
        return None


def skip_blank(text: str, position: int) -> int:
    """The next position that holds no JSON white space."""
    match = _BLANK.match(text, position)
    return match.end() if match else position


def _read_object(text: str, position: int) -> tuple[list[JsonItem], int] | int:
    position = skip_blank(text, position)
    if not text.startswith("{", position):
        return position
    items: list[JsonItem] = []
    position = skip_blank(text, position + 1)
    if text.startswith("}", position):
        return items, position + 1
    while True:
        if not text.startswith('"', position):
            return position
        key, position = _DECODER.raw_decode(text, position)
        position = skip_blank(text, position)
        if not text.startswith(":", position):
            return position
        start = skip_blank(text, position + 1)
        value, end = _DECODER.raw_decode(text, start)
        items.append(JsonItem(key, value, text[start:end]))
        position = skip_blank(text, end)
        if text.startswith("}", position):
            return items, position + 1
        if not text.startswith(",", position):
            return position
        position = skip_blank(text, position + 1)
