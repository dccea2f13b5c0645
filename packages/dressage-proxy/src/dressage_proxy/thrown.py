"""Replies that an agent threw away: it says that the stream broke, and asks on without them.

A client that has a broken reply's beginning sends that back, and one that has nothing may ask the very same
again; either shows by itself. Some tell the model instead: what they then ask is the same, and the news.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
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
_TRIES = 16
"""A message is looked through for so many of each at most: for each its text is read once more."""


def thrown_away(
    tree: TrajectoryTree,
    parent: int,
    raw: Sequence[Mapping[str, Any]],
    keys: Sequence[str],
    read: Mapping[int, Message],
    matched: int,
) -> tuple[int, ...]:
    """The turns that were asked what stands before this request's news that their stream broke.

    ``raw`` and ``keys`` are the request's messages, of which ``matched`` are those of turn ``parent``;
    ``read`` are some of them, by index.
    """
    asked: set[tuple[str, ...]] = set()
    for index in range(matched, len(raw)):
        if raw[index].get("role") != "user":
            continue
        message = read.get(index) or read_message(raw[index], index)
        for before in _before(message.content):
            begun = [message_key(replace(message, content=before))] if before else []
            asked.add((*keys[matched:index], *begun))
    if not asked:
        return ()
    near = tree.children(parent) if parent != ROOT else _roots(tree)
    return tuple(turn for turn in near if tree.turn(turn).input_keys in asked)


def _roots(tree: TrajectoryTree) -> list[int]:
    return [turn.index for turn in tree.turns if turn.parent == ROOT]


def _before(text: str) -> Iterator[str]:
    """What a message may have said before each such news in it: a stream may break again, and be told again.
    Of the white space between, all, one line break or nothing came with the news: dialects join texts so."""
    for news, lead in BROKEN_MARKS.items():
        at = -1
        for _ in range(_TRIES):
            at = text.find(news, at + 1)
            if at < 0:
                break
            found = lead.search(text, max(0, at - _LEAD_CHARS), at)
            if found is not None and (found.start() == 0 or "\n" in found.group()):
                space = len(found.group()) - len(found.group().lstrip())
                for kept in {0, max(0, space - 1), space}:
                    yield text[: found.start() + kept]
