"""Replies that an agent threw away: it says that the stream broke, and asks on without them.

A client that has a broken reply's beginning sends that back, and one that has nothing may ask the very same
again; either shows by itself. Some tell the model instead: what they then ask is the same, and the news.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dressage_segments import ROOT, TrajectoryTree
from dressage_tito import Message

from dressage_proxy.canonical import message_key
from dressage_proxy.reading import read_message

BROKEN_MARKS: Mapping[str, re.Pattern[str]] = {
    "Your response above was cut off mid-stream": re.compile(r"\s*(?:<system-reminder>\s*)?\Z"),
    "Continue the current task from the existing transcript": re.compile(r"\s*(?:\[[^\]\n]{1,40}\] )?\Z"),
}
"""How the news begins -> what may stand before it, from the end of the line or message before it."""
_LEAD_CHARS = 80


def thrown_away(
    tree: TrajectoryTree,
    parent: int,
    raw: Sequence[Mapping[str, Any]],
    keys: Sequence[str],
    read: Mapping[int, Message],
    matched: int,
) -> tuple[int, ...]:
    """The turns that were asked what this request asks, but for its news that their stream broke.

    ``raw`` and ``keys`` are the request's messages, of which ``matched`` are those of turn ``parent``;
    ``read`` are some of them, by index.
    """
    asked = list(keys[matched:])
    for index in range(len(raw) - 1, matched - 1, -1):
        if raw[index].get("role") != "user":
            continue
        message = read.get(index) or read_message(raw[index], index)
        before = _before(message.content)
        if before is None:
            continue
        asked[index - matched : index - matched + 1] = (
            [message_key(replace(message, content=before))] if before else []
        )
    if len(asked) == len(keys) - matched and asked == list(keys[matched:]):
        return ()
    near = tree.children(parent) if parent != ROOT else _roots(tree)
    return tuple(turn for turn in near if list(tree.turn(turn).input_keys) == asked)


def _roots(tree: TrajectoryTree) -> list[int]:
    return [turn.index for turn in tree.turns if turn.parent == ROOT]


def _before(text: str) -> str | None:
    """What a message says before such news; None where it has none."""
    for news, lead in BROKEN_MARKS.items():
        at = text.find(news)
        if at < 0:
            continue
        found = lead.search(text, max(0, at - _LEAD_CHARS), at)
        if found is not None and (found.start() == 0 or "\n" in found.group()):
            return text[: found.start()]
    return None
