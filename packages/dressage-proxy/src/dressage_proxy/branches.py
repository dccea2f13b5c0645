"""What a call is for, by declared rules: from the agent's headers, from marks in its messages, and from what
the session's tree holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dressage_segments import BranchKind, TrajectoryTree, Turn
from dressage_segments.turn import ROOT
from numpy.typing import NDArray

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

_TALK = r"\b(?:conversation|chat|session|thread|discussion|dialog(?:ue)?)\b"

HELPER_PROMPTS = (
    re.compile(
        r"(?:You are an? |Generate an? |Write an? )?(?:short |concise |brief )?title\b", re.IGNORECASE
    ),
    re.compile(rf"[^\n]{{0,80}}\b(?:generat|creat|writ|provid|suggest)[^\n]{{0,60}}\btitle\b.{{0,120}}{_TALK}",
               re.IGNORECASE | re.DOTALL),
    re.compile(rf"Summari[sz]e th[^\n]{{0,20}}{_TALK} in [^\n]{{0,20}}\d+ (?:characters|words)",
               re.IGNORECASE),
    re.compile(r"Analy[sz]e (?:if|whether) this message indicates a new", re.IGNORECASE),
    re.compile(r"Extract any file paths that this command", re.IGNORECASE),
    re.compile(r"You (?:generate|write|provide) [^\n]{0,40}\b(?:recaps?|titles? for)\b", re.IGNORECASE),
    re.compile(r"You are an? [^\n]{0,40}\bclassifier for an? [^\n]{0,40}\b(?:agent|assistant)\b",
               re.IGNORECASE),
    re.compile(r"You are (?:selecting|choosing) [^\n]{0,20}\bmemories\b", re.IGNORECASE),
    re.compile(r"Write a short summary label\b", re.IGNORECASE),
)  # fmt: skip
"""System prompts, from their start, of calls without tools whose answer the agent itself never sees."""

COMPACTION_PROMPTS = (
    re.compile(r"(?:You are .{0,80})?summari[sz](?:e|ing|ation|er)", re.IGNORECASE | re.DOTALL),
    re.compile(r"You are .{0,60}\bcompact(?:ion|ing|s)\b", re.IGNORECASE | re.DOTALL),
    re.compile(r"You are .{0,80}\bdistill(?:s|ing)\b", re.IGNORECASE | re.DOTALL),
    re.compile(r"You are maintaining .{0,40}\bsummary\b", re.IGNORECASE | re.DOTALL),
    re.compile(r"\W*briefly\W+summari[sz]e", re.IGNORECASE),
    re.compile(r"You are .{0,60}\bcompress(?:or|es|ing)\b", re.IGNORECASE | re.DOTALL),
    re.compile(
        r"You are .{0,120}\b(?:creat|maintain|produc|writ)ing .{0,20}\bsummar(?:y|ies)\b",
        re.IGNORECASE | re.DOTALL,
    ),
)
"""System prompts, from their start, of calls without tools that shorten a history."""

HELPER_MARKS = (
    re.compile(r"\[SUGGESTION MODE", re.IGNORECASE),
    re.compile(
        rf"(?:#+ Task:\s+)?(?:Please )?(?:write|generate|create|provide|suggest) an? [^\n]{{0,40}}\btitle\b"
        rf"[^\n]{{0,60}}{_TALK}",
        re.IGNORECASE,
    ),
    re.compile(r"#+ Task:\s+(?:Generate|Suggest) [^\n]{0,60}\b(?:title|tags|questions)\b", re.IGNORECASE),
    re.compile(r"Based on the conversation so far, provide a concise description", re.IGNORECASE),
    re.compile(r"Analy[sz]e \*?only\*? the content and structure of your .{0,30}response", re.IGNORECASE),
    re.compile(r"Generate (?:a|the) [^\n]{0,20}\b(?:recap|title) now\b", re.IGNORECASE),
    re.compile(
        r"[^\n]{0,60}\breply with an? [^\n]{0,20}\btitle for the (?:chat|conversation)\b", re.IGNORECASE
    ),
)
"""Starts of a text block of the last message, in calls whose answer the agent itself never sees. A user may
well ask for a title: only one of the conversation itself is such a call."""

PROBES = (["quota"], ["count"])
"""The whole last message of a call that asks for one token: the agent looks whether anybody is there."""

COMPACTION_MARKS = (
    re.compile(r"CRITICAL: Respond with TEXT ONLY"),
    re.compile(r"(?:You are performing a )?CONTEXT CHECKPOINT COMPACTION"),
    re.compile(r"Your task is to create a detailed summary of the conversation"),
    re.compile(r"CRITICAL: This summari[sz]ation request is a SYSTEM OPERATION"),
    re.compile(r"The current conversation is rapidly running out of context"),
    re.compile(r"Provide a detailed (?:prompt|summary) for continuing our conversation"),
    re.compile(r"First, reason in your scratchpad\. Then, generate the <"),
    re.compile(r"(?:-+\s+)?The above is a list of messages in an agent conversation"),
    re.compile(r"#+ Task Context\s+- An llm context limit was reached"),
    re.compile(r"You have been working on the task described above but have not yet completed it\b"),
    re.compile(
        rf"[^\n]{{0,60}}\bsummar(?:y|i[sz]e)\b[^\n]{{0,40}}{_TALK}[^\n]{{0,20}}\b(?:so far|above)\b",
        re.IGNORECASE,
    ),
    re.compile(
        rf"You are [^\n]{{0,60}}\b(?:summari[sz]|compact|compress)[^\n]{{0,40}}{_TALK}", re.IGNORECASE
    ),
)
"""The same in calls that shorten a history."""

SHORTENING_PROMPTS = (
    re.compile(rf".{{0,120}}\bsummar(?:y|i[sz]e|i[sz]ation)\b[^\n]{{0,60}}{_TALK}", re.IGNORECASE),
    re.compile(rf"Analy[sz]e the (?:following )?{_TALK}[^\n]{{0,60}}\b(?:extract|summar)", re.IGNORECASE),
    re.compile(r"(?:<role>\s*)?Context Extraction Assistant\b"),
)
"""Starts, stripped, of the first or last message of calls without tools that shorten a main branch's history,
as client libraries ask for it. Who starts with such a call may have been asked for just that."""

_FLATTENED_MARK = "<conversation>\n"
_FLATTENED = re.compile(rf".{{0,400}}?(?:^|\n){_FLATTENED_MARK}", re.DOTALL)
"""A whole conversation in one user message, in a call without tools: it is to be shortened."""


def _any_of(marks: Sequence[re.Pattern[str]]) -> re.Pattern[str]:
    """One pattern that matches where one of them does."""
    flags = (("i", re.IGNORECASE), ("s", re.DOTALL), ("m", re.MULTILINE))
    parts = []
    for mark in marks:
        letters = "".join(letter for letter, flag in flags if mark.flags & flag)
        parts.append(f"(?{letters}:{mark.pattern})")
    return re.compile("|".join(parts))


_ANY_MARK = _any_of((*COMPACTION_MARKS, *HELPER_MARKS))
"""Most texts start with none of them, which is seen at once."""

SUBAGENT_PROMPTS = (re.compile(r"\[Subagent Context\]"),)
"""Starts of the first user message of a sub-agent whose agent sends no header."""

FORK_MARKS = (re.compile(r"(?:<fork-[\w-]+>\s*)?(?:STOP\b[^\n]{0,200}\s{1,8})?You are a forked worker\b"),)
"""Starts of a user message from which on a copy of the agent works: it has the whole history till there."""

SUBAGENT_SYSTEMS = (
    re.compile(r"You are (?:now )?(?:acting as )?(?:an?|the) [^.\n]{0,60}\bsub-?agent\b", re.IGNORECASE),
    re.compile(r"You are [^.\n]{0,60}\bmanaged memor(?:y|ies)\b", re.IGNORECASE),
    re.compile(r"You are reviewing this conversation to extract\b", re.IGNORECASE),
)
"""System prompts, from their start, of agents beside the main one, whatever history they are given."""

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
    marked = [text for text in blocks if _ANY_MARK.match(text)]
    if marked and tools and not any(message.get("role") == "assistant" for message in raw):
        return None
    if any(mark.match(text) for text in marked for mark in COMPACTION_MARKS):
        return BranchKind.COMPACTION
    if not tools and any(_FLATTENED_MARK in text and _FLATTENED.match(text) for text in blocks):
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
