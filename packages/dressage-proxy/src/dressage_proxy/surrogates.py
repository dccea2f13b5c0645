"""Halves of surrogate pairs, which JSON can spell and UTF-8 cannot.

Agents in JavaScript send them where they cut a text in the middle of an emoji, and models sample them in the
arguments of calls. Each becomes U+FFFD, as it does whenever JavaScript writes UTF-8.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

_HALF = re.compile("[\ud800-\udfff]")
_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")

HALVES_NOTE = "halves of surrogate pairs in the request were read as U+FFFD"


def load_json(data: bytes) -> tuple[Any, bool]:
    """The value of a JSON text, and whether a half pair in it was replaced. Raises ValueError."""
    try:
        return orjson.loads(data), False
    except orjson.JSONDecodeError:
        if not _ESCAPE.search(data):
            raise
    value = json.loads(data.decode("utf-8"), parse_constant=_no_number)
    return whole(value), True


def whole(value: Any) -> Any:
    """A value of JSON with each half pair in its texts replaced."""
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, dict):
        return {
            whole_text(name) if isinstance(name, str) else name: whole(item) for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [whole(item) for item in value]
    return value


def whole_text(text: str) -> str:
    """A text with each half pair replaced."""
    return text if text.isascii() else _HALF.sub("\N{REPLACEMENT CHARACTER}", text)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
