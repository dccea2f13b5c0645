"""Words by which agents say what a call is for: starts of system prompts and of messages, agent by agent."""

from __future__ import annotations

import re
from collections.abc import Sequence

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

FLATTENED_MARK = "<conversation>\n"
FLATTENED = re.compile(rf".{{0,400}}?(?:^|\n){FLATTENED_MARK}", re.DOTALL)
"""A whole conversation in one user message, in a call without tools: it is to be shortened."""


def _any_of(marks: Sequence[re.Pattern[str]]) -> re.Pattern[str]:
    """One pattern that matches where one of them does."""
    flags = (("i", re.IGNORECASE), ("s", re.DOTALL), ("m", re.MULTILINE))
    parts = []
    for mark in marks:
        letters = "".join(letter for letter, flag in flags if mark.flags & flag)
        parts.append(f"(?{letters}:{mark.pattern})")
    return re.compile("|".join(parts))


ANY_MARK = _any_of((*COMPACTION_MARKS, *HELPER_MARKS))
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
