"""Calls whose arguments are a JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dressage_tito.coerce import coerce_arguments
from dressage_tito.jsonspan import JsonItem, read_object, read_value, skip_blank
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
    if isinstance(value.value, str):
        return _call_of_text(call_id, name, value.value, schemas)
    if not isinstance(value.value, dict):
        return None
    return typed_call(call_id, name, value.value, value.text, schemas)


def _call_of_text(
    call_id: str, name: str, text: str, schemas: Mapping[str, Any]
) -> tuple[ToolCall, list[str]] | None:
    """A call whose arguments are written as a text that spells an object, as clients send them."""
    found = read_value(text.strip(), 0)
    if found is None or found[1] != len(text.strip()) or not isinstance(found[0], dict):
        return None
    call, odd = typed_call(call_id, name, found[0], text.strip(), schemas)
    return call, [f"arguments_are_text: {name}: the arguments were written as a text of JSON", *odd]


def typed_call(
    call_id: str, name: str, values: dict[str, Any], text: str, schemas: Mapping[str, Any]
) -> tuple[ToolCall, list[str]]:
    """A call with its arguments typed by its tool's schema, the text as it was written, and warnings."""
    typed, odd = coerce_arguments(values, schemas.get(name))
    return ToolCall(call_id, name, typed, text), [f"argument_type: {name}: {warning}" for warning in odd]


def read_arguments(text: str, position: int) -> tuple[dict[str, Any], str, int] | int:
    """The object that begins here (blanks may come first): its value, its own text, and where it ends.

    Where there is none: how far the text was read.
    """
    found = read_object(text, position)
    if isinstance(found, int):
        return found
    items, end = found
    start = text.index("{", position)
    return {item.key: item.value for item in items}, text[start:end], end


def read_list(
    text: str,
    position: int,
    schemas: Mapping[str, Any],
    *,
    names: tuple[str, ...] = ("name",),
    ids: tuple[str, ...] = (),
) -> tuple[tuple[ToolCall, ...], tuple[str, ...], int] | int:
    """The calls of a JSON list of objects that begins at ``position``, warnings, and where it ends.

    Where there is none: how far the text was read.
    """
    position = skip_blank(text, position)
    if not text.startswith("[", position):
        return position
    calls: list[ToolCall] = []
    warnings: list[str] = []
    while True:
        found = read_object(text, position + 1)
        if isinstance(found, int):
            return found
        call = call_of_object(found[0], schemas, names=names, ids=ids)
        if call is None:
            return found[1]
        calls.append(call[0])
        warnings += call[1]
        position = skip_blank(text, found[1])
        if text.startswith("]", position):
            return tuple(calls), tuple(warnings), position + 1
        if not text.startswith(",", position):
            return position


def read_calls(
    text: str,
    position: int,
    schemas: Mapping[str, Any],
    *,
    names: tuple[str, ...] = ("name",),
    ids: tuple[str, ...] = (),
) -> tuple[tuple[ToolCall, ...], tuple[str, ...], int] | int:
    """The same for objects that follow one another, with blanks between at most."""
    calls: list[ToolCall] = []
    warnings: list[str] = []
    while not calls or text.startswith("{", skip_blank(text, position)):
        found = read_object(text, position)
        if isinstance(found, int):
            return found
        call = call_of_object(found[0], schemas, names=names, ids=ids)
        if call is None:
            return found[1]
        calls.append(call[0])
        warnings += call[1]
        position = found[1]
    return tuple(calls), tuple(warnings), position
