"""What a call is for, by declared rules: from the agent's headers, from marks in its messages
(:mod:`dressage_proxy.branch_marks`), and from what the session's tree holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dressage_segments import BranchKind, TrajectoryTree, Turn
from dressage_segments.turn import ROOT
from numpy.typing import NDArray

from dressage_proxy.branch_marks import (
    ANY_MARK,
    COMPACTION_MARKS,
    COMPACTION_PROMPTS,
    FLATTENED,
    FLATTENED_MARK,
    FORK_MARKS,
    HELPER_MARKS,
    HELPER_PROMPTS,
    PROBES,
    SHORTENING_PROMPTS,
    SUBAGENT_PROMPTS,
    SUBAGENT_SYSTEMS,
)

ASIDE = (BranchKind.HELPER, BranchKind.COMPACTION)
"""Calls beside a branch: one that goes on after them is still the same branch."""

SUBAGENT_HEADERS = {
    "x-claude-code-agent-id": "x-claude-code-agent-id",
    "x-parent-session-id": "x-session-id",
    "x-codex-parent-thread-id": "thread-id",
    "x-openai-subagent": "thread-id",
}
"""A request with one of these comes from a sub-agent; the header that names it."""

_METADATA_HEADER = "x-codex-turn-metadata"
_SUBAGENT_HEADER = "x-openai-subagent"
_INTERACTION_HEADER = "x-interaction-type"
_INTERACTIONS = {
    "conversation-subagent": BranchKind.SUBAGENT,
    "conversation-compaction": BranchKind.COMPACTION,
}
"""What that header says of a call that is not the user's own."""

_OPENING_CHARS = 200
"""So much of a system prompt tells one agent's from another's: what was rebuilt differs later."""
_TELLING_CHARS = 24
"""A line of a summary that is found again in what goes on from it has at least so many."""
_LEADING = 4
"""Among so many messages, the system prompt included, a history that was shortened has its summary."""


@dataclass(frozen=True, slots=True)
class Start:
    """A request that starts a branch of its own."""

    system_key: str
    """Key of its system prompt, "" for none."""
    system_text: str
    tools_hash: str
    keys: Sequence[str]
    raw: Sequence[Mapping[str, Any]]
    echoed: BranchKind | None
    """The kind of the newest turn of this session that it sends back."""
    tools: bool
    """Whether it offers tools: one that does goes on working, whatever its system prompt speaks of."""
    decode: Callable[[NDArray[np.int32]], str]
    """The text of ids."""


def kind_from_headers(headers: Mapping[str, str]) -> BranchKind | None:
    """What the agent says of its call; header names are lower case."""
    if '"compaction"' in headers.get(_METADATA_HEADER, "") or headers.get(_SUBAGENT_HEADER) == "compact":
        return BranchKind.COMPACTION
    if any(headers.get(name) for name in SUBAGENT_HEADERS):
        return BranchKind.SUBAGENT
    return _INTERACTIONS.get(headers.get(_INTERACTION_HEADER, ""))


def thread_from_headers(headers: Mapping[str, str]) -> str:
    """The agent's own name of the sub-agent that calls, "" for the main one and where no header gives one."""
    for mark, name in SUBAGENT_HEADERS.items():
        if headers.get(mark) and headers.get(name):
            return headers[name]
    return ""


def kind_from_messages(
    raw: Sequence[Mapping[str, Any]], asked: Mapping[str, Any], *, tools: bool
) -> BranchKind | None:
    """What marks in the last message say of a call. One that offers tools and has no answer yet asks for what
    its user wants, whatever the words are: there is nothing to shorten or to name."""
    blocks = text_blocks(raw[-1]) if raw[-1].get("role") == "user" else []
    marked = [text for text in blocks if ANY_MARK.match(text)]
    if marked and tools and not any(message.get("role") == "assistant" for message in raw):
        return None
    if any(mark.match(text) for text in marked for mark in COMPACTION_MARKS):
        return BranchKind.COMPACTION
    if not tools and any(FLATTENED_MARK in text and FLATTENED.match(text) for text in blocks):
        return BranchKind.COMPACTION
    probe = asked.get("max_tokens") == 1 and blocks in PROBES
    if probe or any(mark.match(text) for text in marked for mark in HELPER_MARKS):
        return BranchKind.HELPER
    return None


def kind_of_start(tree: TrajectoryTree, start: Start) -> BranchKind:
    """The kind of a branch that starts from nothing, where neither headers nor marks say it.

    What the system prompt says; the kind of the turns that it sends back; main for the first branch, for one
    under the main branch's system prompt (a rewritten or compacted history goes on), for one with its tools
    that asks its first question or whose system prompt opens as its does (a rebuilt system prompt), and for
    one that goes on from a summary of it; else sub-agent.
    """
    if not start.tools and any(pattern.match(start.system_text) for pattern in HELPER_PROMPTS):
        return BranchKind.HELPER
    if not start.tools and any(pattern.match(start.system_text) for pattern in COMPACTION_PROMPTS):
        return BranchKind.COMPACTION
    roots = [turn for turn in tree.turns if turn.parent == ROOT]
    main = [turn for turn in roots if turn.kind is BranchKind.MAIN]
    if main and not start.tools and _shortens(main, start):
        return BranchKind.COMPACTION
    beside = any(pattern.match(start.system_text) for pattern in SUBAGENT_SYSTEMS)
    if main and beside and not _under(main, start.system_key):
        return BranchKind.SUBAGENT
    if start.echoed in (BranchKind.MAIN, BranchKind.SUBAGENT):
        return start.echoed
    question = _first_question(start.raw)
    if question is not None and _begins(start.raw[question], SUBAGENT_PROMPTS):
        return BranchKind.SUBAGENT
    if not main or _under(main, start.system_key):
        return BranchKind.MAIN
    if _under([turn for turn in roots if turn.kind is BranchKind.SUBAGENT], start.system_key):
        return BranchKind.SUBAGENT
    same = [turn for turn in main if turn.tools_hash == start.tools_hash != ""]
    if question is not None and any(start.keys[question] in turn.input_keys for turn in same):
        return BranchKind.MAIN
    opening = start.system_text.strip()[:_OPENING_CHARS]
    opens = len(opening) == _OPENING_CHARS
    if opens and start.tools and any(opening in start.decode(turn.delta_ids) for turn in same):
        return BranchKind.MAIN
    return BranchKind.MAIN if start.tools and _summarised(tree, start) else BranchKind.SUBAGENT


def kind_that_goes_on(tree: TrajectoryTree, parent: int, *, tools: bool) -> BranchKind:
    """The kind of a request that goes on from turn ``parent``.

    Who goes on with tools after what looked like a call beside the branch goes on with the branch: there was
    a user who asked for a summary.
    """
    turn = tree.turn(parent)
    while tools and turn.kind in ASIDE:
        if turn.parent == ROOT:
            return BranchKind.MAIN
        turn = tree.turn(turn.parent)
    return turn.kind


def forks(raw: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a copy of the agent works from one of these messages on."""
    return any(_begins(message, FORK_MARKS) for message in raw if message.get("role") == "user")


def text_blocks(message: Mapping[str, Any]) -> list[str]:
    """The texts of a message's content, part by part."""
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        return []
    texts = (part.get("text") for part in content if isinstance(part, Mapping))
    return [text for text in texts if isinstance(text, str)]


def _first_question(raw: Sequence[Mapping[str, Any]]) -> int | None:
    return next((index for index, message in enumerate(raw) if message.get("role") == "user"), None)


def _begins(message: Mapping[str, Any], marks: Sequence[re.Pattern[str]]) -> bool:
    texts = [text.lstrip() for text in text_blocks(message)]
    return any(mark.match(text) for text in texts for mark in marks)


def _shortens(main: Sequence[Turn], start: Start) -> bool:
    """Whether a start's first or last message asks to shorten a history, and is none that the main branch
    started with: who asks that again, or goes on from another history under it, is the main agent."""
    asked = [index for index in (0, -1) if start.raw[index].get("role") != "assistant"]
    return any(
        _begins(start.raw[index], SHORTENING_PROMPTS)
        and not any(start.keys[index] in turn.input_keys for turn in main)
        for index in asked
    )


def _under(roots: Sequence[Turn], system_key: str) -> bool:
    """Whether one of these turns was sampled under a system prompt."""
    return any(turn.extra.get("system_key", "") == system_key for turn in roots)


def _summarised(tree: TrajectoryTree, start: Start) -> bool:
    """Whether one of the first messages has a line of what a compaction of this session said."""
    texts = [text for message in start.raw[:_LEADING] for text in text_blocks(message)]
    for turn in tree.turns:
        if turn.kind is BranchKind.COMPACTION:
            lines = {line.strip() for line in start.decode(turn.output_ids).splitlines()}
            telling = [line for line in lines if len(line) >= _TELLING_CHARS]
            if any(line in text for line in telling for text in texts):
                return True
    return False
