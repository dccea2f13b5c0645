"""Argument values that are written as raw text: their types, and a JSON text that loses nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dressage_tito.coerce import coerce_arguments
from dressage_tito.jsonspan import read_value
from dressage_tito.messages import ToolCall


def call_of_texts(
    call_id: str, name: str, texts: list[tuple[str, str]], schemas: Mapping[str, Any]
) -> tuple[ToolCall, list[str]]:
    """A call from its parameters' raw texts, typed by the tool's schema, and warnings.

    A value becomes what its schema asks for where it spells that exactly, and stays text elsewhere (also
    where the schema names no type). ``arguments_text`` is made of the values' own spelling: numbers, objects
    and arrays stand in it as they were written. A name that comes twice stands there twice; the last counts.
    """
    typed, odd = coerce_arguments(dict(texts), schemas.get(name))
    last = {key: index for index, (key, _) in enumerate(texts)}
    members = [
        f"{_json(key)}: {_spelling(text, typed[key]) if last[key] == index else _json(text)}"
        for index, (key, text) in enumerate(texts)
    ]
    warnings = [f"argument_type: {name}: {warning}" for warning in odd]
    return ToolCall(call_id, name, typed, "{" + ", ".join(members) + "}"), warnings


def _spelling(text: str, value: Any) -> str:
    if isinstance(value, str):
        return _json(value)
    bare = text.strip()
    found = read_value(bare, 0)
    return bare if found is not None and found[1] == len(bare) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
