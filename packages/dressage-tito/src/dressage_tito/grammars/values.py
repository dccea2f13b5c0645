"""Argument values that are written as raw text: their types, and a JSON text that loses nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from dressage_tito.coerce import coerce_arguments
from dressage_tito.jsonspan import read_value
from dressage_tito.messages import ToolCall

Raw: TypeAlias = "str | dict[str, Raw] | list[Raw]"
"""A value as it was written: text, or texts in objects and lists."""


@dataclass(frozen=True, slots=True)
class RawParameter:
    """A parameter as it was written; with ``is_json`` the family says that the text is JSON."""

    key: str
    text: str
    is_json: bool = False


def parameter_names(schema: object) -> frozenset[str]:
    """The parameters that a tool's schema names."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return frozenset(properties) if isinstance(properties, Mapping) else frozenset()


def call_of_texts(
    call_id: str, name: str, parameters: list[RawParameter], schemas: Mapping[str, Any]
) -> tuple[ToolCall, list[str]]:
    """A call from its parameters' raw texts, typed by the tool's schema, and warnings.

    A value becomes what its schema asks for where it spells that exactly, and stays text elsewhere (also
    where the schema names no type). ``arguments_text`` is made of the values' own spelling: numbers, objects
    and arrays stand in it as they were written. A name that comes twice stands there twice; the last counts.
    """
    values = {parameter.key: _value(parameter) for parameter in parameters}
    typed, odd = coerce_arguments(values, schemas.get(name))
    last = {parameter.key: index for index, parameter in enumerate(parameters)}
    members = [
        f"{_json(parameter.key)}: "
        + (
            _spelling(parameter.text, typed[parameter.key])
            if last[parameter.key] == index
            else _json(parameter.text)
        )
        for index, parameter in enumerate(parameters)
    ]
    warnings = [f"argument_type: {name}: {warning}" for warning in odd]
    return ToolCall(call_id, name, typed, "{" + ", ".join(members) + "}"), warnings


def call_of_values(
    call_id: str, name: str, values: dict[str, Raw], schemas: Mapping[str, Any]
) -> tuple[ToolCall, list[str]]:
    """The same for values that are objects and lists of raw texts."""
    typed, odd = coerce_arguments(values, schemas.get(name))
    text = _spelled_out(values, typed)
    return ToolCall(call_id, name, typed, text), [f"argument_type: {name}: {warning}" for warning in odd]


def _spelled_out(raw: Raw, value: Any) -> str:
    if isinstance(raw, str):
        return _spelling(raw, value)
    if isinstance(raw, dict):
        return "{" + ", ".join(f"{_json(key)}: {_spelled_out(raw[key], value[key])}" for key in raw) + "}"
    pairs = zip(raw, value, strict=True)
    return "[" + ", ".join(_spelled_out(item, typed) for item, typed in pairs) + "]"


def _value(parameter: RawParameter) -> Any:
    if not parameter.is_json:
        return parameter.text
    bare = parameter.text.strip()
    found = read_value(bare, 0)
    return found[0] if found is not None and found[1] == len(bare) else parameter.text


def _spelling(text: str, value: Any) -> str:
    """A value's JSON text: its own where that is JSON of the same kind, else one that is made here."""
    bare = text.strip()
    found = None if isinstance(value, str) else read_value(bare, 0)
    return bare if found is not None and found[1] == len(bare) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
