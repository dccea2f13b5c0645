"""Parallel calls whose results a client sends right after each call: one turn again, then its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Raw = Sequence[Mapping[str, Any]]


def joined_calls(
    calls: Mapping[str, int], raw: Raw, handles: Mapping[int, str]
) -> tuple[Raw, Mapping[int, str]]:
    """``raw`` with the calls of one sampled turn in one message, and ``handles`` by the new indices.

    ``calls``: wire id of a call -> its turn. An assistant message that has nothing but further calls of the
    turn before it, with results alone in between, is a part of that turn. Anything else stays as it is.
    """
    joined: list[Mapping[str, Any]] = []
    moved: dict[int, str] = {}
    at, open_turn = 0, None
    for index, message in enumerate(raw):
        role = message.get("role") if isinstance(message, Mapping) else None
        if role == "assistant":
            turn = _turn(calls, message)
            if (
                turn is not None
                and turn == open_turn
                and index + 1 < len(raw)
                and _further(joined[at], message)
            ):
                made = [*joined[at]["tool_calls"], *message["tool_calls"]]
                joined[at] = {**joined[at], "tool_calls": made}
                continue
            at, open_turn = len(joined), turn
        elif role != "tool":
            open_turn = None
        if index in handles:
            moved[len(joined)] = handles[index]
        joined.append(message)
    return (raw, handles) if len(joined) == len(raw) else (joined, moved)


def _further(first: Mapping[str, Any], message: Mapping[str, Any]) -> bool:
    """Whether a message has calls alone, and none that ``first`` has."""
    said = message.get("content") or message.get("reasoning_content")
    return not said and not {call["id"] for call in message["tool_calls"]} & {
        call["id"] for call in first["tool_calls"]
    }


def _turn(calls: Mapping[str, int], message: Mapping[str, Any]) -> int | None:
    """The one turn that made all calls of a message."""
    made = message.get("tool_calls")
    if not isinstance(made, list) or not made:
        return None
    ids = [call.get("id") if isinstance(call, Mapping) else None for call in made]
    turns = {calls.get(wire) if isinstance(wire, str) else None for wire in ids}
    return turns.pop() if len(turns) == 1 else None
