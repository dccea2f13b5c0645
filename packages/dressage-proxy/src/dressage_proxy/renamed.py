"""Calls that come back under other ids than they were handed out with.

Some clients give every call an id of the form that one vendor's API has, or count them anew in each request.
Such an id names nothing here; what the call says, in the very place where it was sampled, does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dressage_segments import Turn
from dressage_tito import Message

from dressage_proxy.canonical import message_key


def as_issued(message: Message, turn: Turn) -> Message | None:
    """An assistant message under the ids that a turn's calls were handed out with, where it is then just what
    the turn returned; else None."""
    issued = _issued(turn)
    if not issued or len(issued) != len(message.tool_calls):
        return None
    calls = [replace(call, id=wire) for call, wire in zip(message.tool_calls, issued, strict=True)]
    renamed = replace(message, tool_calls=tuple(calls), name="")
    return renamed if message_key(renamed) == turn.reply_key else None


def issued_id(call_id: str, raw: Sequence[Mapping[str, Any]], turns: Sequence[Turn | None]) -> str:
    """The id that a call was handed out with which the client names ``call_id``; "" where it is none.

    ``turns`` are what the messages ``raw`` before the call's result were sampled as, None for the others.
    """
    for message, turn in zip(reversed(raw), reversed(turns), strict=True):
        made = [call.get("id") for call in message.get("tool_calls") or ()]
        if call_id in made:
            issued = [] if turn is None else _issued(turn)
            return issued[made.index(call_id)] if len(issued) == len(made) else ""
    return ""


def _issued(turn: Turn) -> list[str]:
    return list(turn.extra.get("wire_ids", {}))
