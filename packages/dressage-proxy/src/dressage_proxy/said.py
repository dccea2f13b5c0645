"""What a turn's sampled ids say, read again."""

from __future__ import annotations

from collections.abc import Sequence

from dressage_segments import Turn
from dressage_tito import ChatCodec, ParsedTurn, Tool

ANY_TOOL: Sequence[Tool] = ({"type": "function", "function": {"name": "any"}},)
"""Calls are parsed only where tools are offered."""


def parsed(
    codec: ChatCodec, turn: Turn, first: int | None = None, tools: Sequence[Tool] | None = ANY_TOOL
) -> ParsedTurn:
    """What all of a turn's ids say, or its ``first`` ones, as of a turn that was cut there."""
    return codec.parse(
        turn.output_ids[:first],
        reasoning_open=bool(turn.extra.get("reasoning_open")),
        finish_reason=turn.finish_reason if first is None else "length",
        tools=tools,
    )
