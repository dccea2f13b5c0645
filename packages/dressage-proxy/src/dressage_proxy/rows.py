"""Texts of turns in a row that a client joined to the message of the first of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dressage_segments import TrajectoryTree, Turn
from dressage_tito import ChatCodec

from dressage_proxy.added import own_text

Row = tuple[tuple[Turn, str], ...]
"""Turns in a row, each with its text."""
_LONGEST = 8
"""So many turns in a row are looked for in one message."""


def row_behind(
    tree: TrajectoryTree,
    codec: ChatCodec,
    following: Sequence[Any],
    turn: Turn,
    whole: str,
    row: Row = (),
) -> tuple[str, Row] | None:
    """The longest row of turns after ``turn``, and ``row``, whose texts end ``whole``, and what stands before
    these there. Turns that made calls are those of the ``following`` messages, each of its own."""
    if len(row) == _LONGEST:
        return None
    for later in _next(tree, turn):
        issued = later.extra.get("wire_ids", {})
        if issued and _first_call(following) not in issued:
            continue
        longer = (*row, (later, own_text(codec, later)))
        left = following[1:] if issued else following
        found = row_behind(tree, codec, left, later, whole, longer) or _ended(whole, longer)
        if found is not None:
            return found
    return None


def _next(tree: TrajectoryTree, turn: Turn) -> list[Turn]:
    """The turns that were asked for right after ``turn``, in its own context or where that was told anew."""
    return [
        later
        for later in tree.turns[turn.index + 1 :]
        if (later.input_keys[-1] == turn.reply_key if later.input_keys else later.parent == turn.index)
    ]


def _ended(whole: str, row: Row) -> tuple[str, Row] | None:
    """A text less those of a row of turns at its end, and the row; None where they are not there."""
    for _, text in reversed(row):
        whole = whole.rstrip()
        if not whole.endswith(text):
            return None
        whole = whole[: len(whole) - len(text)]
    return (whole.rstrip(), row) if any(text for _, text in row) else None


def _first_call(messages: Sequence[Any]) -> str:
    """The id of the first message's first call, "" where it has none."""
    calls = messages[0].get("tool_calls") if messages and isinstance(messages[0], Mapping) else None
    first = calls[0] if isinstance(calls, list) and calls else None
    return str(first.get("id")) if isinstance(first, Mapping) else ""
