"""Argument types by the tool's JSON schema.

The rule: a *string* value whose schema admits no string, and that spells a value of an admitted type exactly,
becomes that value. Everything else stays as it was written: a string where the schema admits strings (unless
it lists its values, and what the string spells is the one that is listed) or names no type (``any`` stays
text), a spelling that is not exact (``7.5`` or ``020`` for an integer; a warning says so), a value that was
no string to begin with. Truth values may be spelled in any case, and objects and arrays as Python's literals,
since models write Python's. A schema names its types by ``type`` (in any case, also as ``int``, ``str``,
``dict``, ``any`` and the like; with ``nullable``), ``enum``, ``const``, ``properties`` or ``items``, also
behind a ``$ref`` into itself, ``anyOf``, ``oneOf`` and ``allOf``.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dressage_tito.jsonspan import read_value
from dressage_tito.pyvalue import Stop, read_literal

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_MAX_DIGITS = 4000
_MAX_DEPTH = 100
_OTHERS = "additionalProperties"
_ALIASES = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "dict": "object",
    "map": "object",
    "list": "array",
    "tuple": "array",
    "none": "null",
}
"""Type names that are no JSON schema's, as tools that are described by hand have them."""
_TYPE_OF = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}
Schema = Mapping[str, Any]


def coerce_arguments(values: Mapping[str, Any], schema: object) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Arguments with the types that ``schema`` (a tool's ``parameters``) asks for, and warnings."""
    if not isinstance(schema, Mapping):
        return dict(values), ()
    coercion = _Coercion(schema)
    coerced = coercion.coerce(dict(values), schema, "", 0)
    return coerced, tuple(coercion.warnings)


class _Coercion:
    def __init__(self, root: Schema) -> None:
        self.warnings: list[str] = []
        self._root = root
        self._known: dict[int, tuple[object, _Admitted]] = {}
        """By the schema's identity, which it keeps as long as it is here: a list's items are many, and have
        one."""

    def coerce(self, value: Any, schema: object, path: str, depth: int) -> Any:
        if depth > _MAX_DEPTH or not isinstance(value, dict | list | str):
            return value
        admitted = self._admitted(schema)
        if isinstance(value, dict):
            known, others = admitted.members
            return {
                key: self.coerce(item, known.get(key, others), f"{path}.{key}" if path else key, depth + 1)
                for key, item in value.items()
            }
        if isinstance(value, list):
            first, rest = admitted.items
            return [
                self.coerce(item, schema, f"{path}[{index}]", depth + 1)
                for index, (item, schema) in enumerate(
                    zip(value, itertools.chain(first, itertools.repeat(rest)), strict=False)
                )
            ]
        return self._text(value, schema, admitted, path, depth)

    def _text(self, value: str, schema: object, admitted: _Admitted, path: str, depth: int) -> Any:
        types = admitted.types
        if "string" in types:
            return _listed(value, types, admitted.values)
        if not types:
            return value
        found = _spelled(value, types)
        if found is _NOTHING:
            wanted = " or ".join(sorted(types))
            self.warnings.append(f"argument {path} is the text {value[:40]!r}, not {wanted}")
            return value
        return self.coerce(found, schema, path, depth + 1) if isinstance(found, dict | list) else found

    def _admitted(self, schema: object) -> _Admitted:
        found = self._known.get(id(schema))
        if found is None:
            found = schema, _Admitted(tuple(self._branches(schema, set(), 0)))
            self._known[id(schema)] = found
        return found[1]

    def _branches(self, schema: object, seen: set[int], depth: int) -> Iterator[Schema]:
        """The schemas that a value may follow, references resolved; an empty one where nothing is known.

        Each is given once, however often and on however many ways it is referred to.
        """
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            yield {}
            return
        if id(schema) in seen:
            return
        seen.add(id(schema))
        reference = schema.get("$ref")
        if isinstance(reference, str):
            yield from self._branches(self._target(reference), seen, depth + 1)
            return
        for key in ("anyOf", "oneOf"):
            options = schema.get(key)
            if isinstance(options, list) and options and "type" not in schema:
                for option in options:
                    yield from self._branches(option, seen, depth + 1)
                return
        parts = schema.get("allOf")
        if isinstance(parts, list) and parts and "type" not in schema:
            # One part names the type; the others narrow it.
            resolved = [branch for part in parts for branch in self._branches(part, seen, depth + 1)]
            yield next((branch for branch in resolved if _types(branch)), {})
            return
        yield schema

    def _target(self, reference: str) -> object:
        """What a reference into the same schema (``#/$defs/Name``) points to."""
        place: object = self._root
        if not reference.startswith("#"):
            return None
        for step in reference.removeprefix("#").split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            place = place.get(name) if isinstance(place, Mapping) else None
        return place


class _Admitted:
    """What the branches of one schema admit together."""

    def __init__(self, branches: Sequence[Schema]) -> None:
        named = [_types(branch) for branch in branches]
        self.types: frozenset[str] = frozenset().union(*named) if all(named) else frozenset()
        """Empty where nothing is said."""
        self.members = _members(branches)
        self.items = _items(branches)
        listed = [branch.get("enum") for branch in branches]
        values = [values for values in listed if isinstance(values, list)]
        self.values = list(itertools.chain(*values)) if len(values) == len(listed) else None
        """Every value that is admitted, where the schema lists them."""


def _members(branches: Sequence[Schema]) -> tuple[Schema, object]:
    """The schemas of an object's members by name, and that of all others."""
    stated = (branch.get("properties") for branch in branches)
    known: Schema = next((found for found in stated if isinstance(found, Mapping)), {})
    return known, next((branch[_OTHERS] for branch in branches if _OTHERS in branch), None)


def _items(branches: Sequence[Schema]) -> tuple[Sequence[object], object]:
    """The schemas of a list's first items, and that of the rest."""
    for branch in branches:
        first, rest = branch.get("prefixItems"), branch.get("items")
        if isinstance(rest, list):
            first, rest = rest, branch.get("additionalItems")
        if isinstance(first, list) or rest is not None:
            return first if isinstance(first, list) else (), rest
    return (), None


def _listed(text: str, types: frozenset[str], allowed: Sequence[object] | None) -> Any:
    """A text, or the value that it spells where a schema lists its values and the text is none of them."""
    if allowed is None or text in allowed:
        return text
    found = _spelled(text, types - {"string"})
    return found if any(found == value and type(found) is type(value) for value in allowed) else text


def _types(schema: Schema) -> frozenset[str]:
    """The type names that a schema admits; empty where it does not say."""
    types = _named_types(schema)
    return types | {"null"} if types and schema.get("nullable") is True else types


def _named_types(schema: Schema) -> frozenset[str]:
    declared = schema.get("type")
    if isinstance(declared, str):
        declared = [declared]
    if isinstance(declared, list):
        named = [str(name).lower() for name in declared]
        return frozenset() if "any" in named else frozenset(_ALIASES.get(name, name) for name in named)
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values:
        return frozenset(_TYPE_OF.get(type(value), "null") for value in values)
    if isinstance(schema.get("properties"), Mapping):
        return frozenset({"object"})
    return frozenset({"array"}) if "items" in schema else frozenset()


class _Nothing:
    pass


_NOTHING = _Nothing()


def _spelled(text: str, types: frozenset[str]) -> Any:
    bare = text.strip()
    if "null" in types and bare in {"null", "None"}:
        return None
    if "boolean" in types and bare.lower() in {"true", "false"}:
        return bare.lower() == "true"
    if len(bare) <= _MAX_DIGITS:
        if types & {"integer", "number"} and _INTEGER.fullmatch(bare):
            return int(bare)
        if "number" in types and _NUMBER.fullmatch(bare) and math.isfinite(float(bare)):
            return float(bare)
    for name, kind, marks in (("object", dict, "{"), ("array", list, ("[", "("))):
        if name in types and bare.startswith(marks):
            found = _container(bare)
            if isinstance(found, kind):
                return found
    return _NOTHING


def _container(bare: str) -> Any:
    found = read_value(bare, 0)
    if found is not None and found[1] == len(bare):
        return found[0]
    try:
        return read_literal(bare)
    except Stop:
        return _NOTHING
