"""Calls whose arguments are a JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dressage_tito.coerce import coerce_arguments
from dressage_tito.jsonspan import JsonItem, read_object
from dressage_tito.messages import ToolCall


def call_of_object(
    items: list[JsonItem],
    schemas: Mapping[str, Any],
    *,
    names: tuple[str, ...] = ("name",),
    arguments: tuple[str, ...] = ("arguments", "parameters"),
    ids: tuple[str, ...] = (),
) -> tuple[ToolCall, list[str]] | None:
    """The call that an object with a name and arguments is, and warnings; None where it is none.

    The last member of a key counts, as in JSON readers.
    """
    fields = {item.key: item for item in items}
    name = next((fields[key].value for key in names if key in fields), None)
    if not isinstance(name, str) or not name:
        return None
    found = next((fields[key] for key in ids if key in fields), None)
    call_id = found.value if found is not None and isinstance(found.value, str) else ""
    value = next((fields[key] for key in arguments if key in fields), None)
    if value is None or value.value is None:
        return ToolCall(call_id, name, {}, "{}"), []
    if not isinstance(value.value, dict):
        return None
    return typed_call(call_id, name, value.value, value.text, schemas)


def typed_call(
    call_id: str, name: str, values: dict[str, Any], text: str, schemas: Mapping[str, Any]
) -> tuple[ToolCall, list[str]]:
    """A call with its arguments typed by its tool's schema, the text as it was written, and warnings."""
    typed, odd = coerce_arguments(values, schemas.get(name))
    return ToolCall(call_id, name, typed, text), [f"argument_type: {name}: {warning}" for warning in odd]


def read_arguments(text: str, position: int) -> tuple[dict[str, Any], str, int] | None:
    """The object that begins here (blanks may come first): its value, its own text, and where it ends."""
    found = read_object(text, position)
    if found is None:
        return None
    items, end = found
    start = text.index("{", position)
    return {item.key: item.value for item in items}, text[start:end], end
