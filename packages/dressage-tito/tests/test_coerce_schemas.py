"""Tools' schemas come from agents: whatever they refer to, reading a call ends, soon and without an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from dressage_tito import coerce, coerce_arguments


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every look at a schema; more of them than any of these tests needs are an error."""
    seen: list[object] = []

    def counted(look: Callable[..., Any]) -> Callable[..., Any]:
        def looked(*arguments: Any) -> Any:
            seen.append(arguments)
            assert len(seen) < 10_000
            return look(*arguments)

        return looked

    monkeypatch.setattr(coerce, "_types", counted(coerce._types))
    monkeypatch.setattr(coerce._Coercion, "_target", counted(coerce._Coercion._target))
    return seen


def _with(definitions: dict[str, Any], first: str) -> dict[str, Any]:
    return {"properties": {"a": {"$ref": f"#/$defs/{first}"}}, "$defs": definitions}


def _ref(name: object) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


@pytest.mark.parametrize("length", [1, 50, 5000])
def test_a_chain_of_references_is_followed_or_given_up_and_no_error(length: int) -> None:
    chain: dict[str, Any] = {str(step): _ref(step + 1) for step in range(length)}
    schema = _with({**chain, str(length): {"type": "integer"}}, "0")
    assert coerce_arguments({"a": "1"}, schema) == ({"a": 1 if length < 100 else "1"}, ())


def test_references_in_a_circle_say_nothing() -> None:
    schema = _with({"x": _ref("y"), "y": _ref("x")}, "x")
    assert coerce_arguments({"a": "1"}, schema) == ({"a": "1"}, ())


@pytest.mark.parametrize("key", ["anyOf", "oneOf"])
def test_schemas_that_all_refer_to_each_other_admit_what_they_name_and_are_looked_at_once(key: str) -> None:
    definitions = {
        str(at): {key: [*(_ref(other) for other in range(40)), {"type": "integer"}]} for at in range(40)
    }
    assert coerce_arguments({"a": "1"}, _with(definitions, "0")) == ({"a": 1}, ())


@pytest.mark.parametrize("key", ["anyOf", "allOf"])
def test_a_schema_that_is_referred_to_on_many_ways_is_looked_at_once(key: str) -> None:
    definitions: dict[str, Any] = {str(step): {key: [_ref(step + 1)] * 2} for step in range(40)}
    schema = _with({**definitions, "40": {"type": "boolean"}}, "0")
    assert coerce_arguments({"a": "True"}, schema) == ({"a": True}, ())


def test_the_items_of_a_long_list_do_not_look_at_their_schema_anew(looks: list[object]) -> None:
    items = {"anyOf": [{"type": "integer"}, {"type": "number"}, {"type": "null"}]}
    schema = {"properties": {"a": {"type": "array", "items": items}}}
    coerced, warnings = coerce_arguments({"a": ["1", "1.5", "null", "x"] * 5000}, schema)
    assert coerced["a"][:4] == [1, 1.5, None, "x"]
    assert len(warnings) == 5000
    assert len(looks) < 20


def test_alternatives_nested_beyond_any_use_say_nothing() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(5000):
        schema = {"anyOf": [schema]}
    assert coerce_arguments({"a": "1"}, {"properties": {"a": schema}}) == ({"a": "1"}, ())
