"""Argument types by the tool's JSON schema.

The rule: a *string* value whose schema admits no string, and that spells a value of an admitted type exactly,
becomes that value. Everything else stays as it was written: a string where the schema admits strings or names
no type (``any`` stays text), a spelling that is not exact (``7.5`` or ``020`` for an integer; a warning says
so), a value that was no string to begin with. Truth values may be spelled in any case, since models write
Python's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from dressage_tito.jsonspan import read_value

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_MAX_DIGITS = 4000


def coerce_arguments(values: Mapping[str, Any], schema: object) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Arguments with the types that ``schema`` (a tool's ``parameters``) asks for, and warnings."""
    warnings: list[str] = []
    coerced = _coerce(dict(values), schema, "", warnings)
    return coerced, tuple(warnings)


def _coerce(value: Any, schema: object, path: str, warnings: list[str]) -> Any:
    if not isinstance(schema, Mapping):
        return value
    if isinstance(value, dict):
        properties = schema.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        return {
            key: _coerce(item, known.get(key), f"{path}.{key}" if path else key, warnings)
            for key, item in value.items()
        }
    if isinstance(value, list):
        items = schema.get("items")
        return [_coerce(item, items, f"{path}[{index}]", warnings) for index, item in enumerate(value)]
    if not isinstance(value, str):
        return value
    types = _types(schema)
    if not types or "string" in types:
        return value
    found = _spelled(value, types)
    if found is _NOTHING:
        warnings.append(f"argument {path} is the text {value[:40]!r}, not {' or '.join(sorted(types))}")
        return value
    return _coerce(found, schema, path, warnings) if isinstance(found, dict | list) else found


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    """The type names that a schema admits; empty where it does not say (also where a branch does not)."""
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset({declared})
    if isinstance(declared, list):
        return frozenset(str(name) for name in declared)
    for key in ("anyOf", "oneOf"):
        branches = schema.get(key)
        if isinstance(branches, list) and branches:
            names = [_types(branch) if isinstance(branch, Mapping) else frozenset() for branch in branches]
            return frozenset().union(*names) if all(names) else frozenset()
    return frozenset()


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
    for name, kind, mark in (("object", dict, "{"), ("array", list, "[")):
        if name in types and bare.startswith(mark):
            found = read_value(bare, 0)
            if found is not None and found[1] == len(bare) and isinstance(found[0], kind):
                return found[0]
    return _NOTHING
