"""What a new branch is for, by declared rules (contract: agents, "What follows", rule 8)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dressage_segments import BranchKind, TrajectoryTree
from dressage_segments.turn import ROOT

SUBAGENT_HEADERS = ("x-claude-code-agent-id", "x-parent-session-id", "x-codex-parent-thread-id")
"""A request with one of these comes from a sub-agent."""

_SUBAGENT_HEADER = "x-openai-subagent"
_METADATA_HEADER = "x-codex-turn-metadata"

HELPER_PROMPTS = (
    re.compile(r"(?:You are a )?title generator", re.IGNORECASE),
    re.compile(r"Generate a (?:short |concise )?title", re.IGNORECASE),
)
"""System prompts, from their start, of calls whose answer the agent itself never sees."""

COMPACTION_PROMPTS = (
    re.compile(r"(?:You are .{0,80})?summari[sz](?:e|ing|ation|er)", re.IGNORECASE | re.DOTALL),
)
"""System prompts, from their start, of calls that shorten a history."""


def kind_from_headers(headers: Mapping[str, str]) -> BranchKind | None:
    """What the agent says of its call; header names are lower case."""
    if '"compaction"' in headers.get(_METADATA_HEADER, ""):
        return BranchKind.COMPACTION
    if headers.get(_SUBAGENT_HEADER) or any(headers.get(name) for name in SUBAGENT_HEADERS):
        return BranchKind.SUBAGENT
    return None


def kind_of_root(
    tree: TrajectoryTree, system_key: str, system_text: str, said: BranchKind | None
) -> BranchKind:
    """The kind of a branch that starts from nothing.

    What the headers say, else what the system prompt says, else main for the first branch and for one under
    the main branch's system prompt (a rewritten or compacted history goes on), else sub-agent.
    """
    if said is not None:
        return said
    if any(pattern.match(system_text) for pattern in HELPER_PROMPTS):
        return BranchKind.HELPER
    if any(pattern.match(system_text) for pattern in COMPACTION_PROMPTS):
        return BranchKind.COMPACTION
    main = [turn for turn in tree.turns if turn.parent == ROOT and turn.kind is BranchKind.MAIN]
    if not main or any(turn.extra.get("system_key", "") == system_key for turn in main):
        return BranchKind.MAIN
    return BranchKind.SUBAGENT
