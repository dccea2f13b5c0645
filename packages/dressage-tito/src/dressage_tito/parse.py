"""A sampled turn's text as content, reasoning and tool calls.

One pure function of the whole text, so that how a turn arrived (streamed or not, split anywhere) changes
nothing. Whether the turn begins inside reasoning is told by the prompt's tail, never read from the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dressage_tito.grammars import ToolGrammarName, grammar_named
from dressage_tito.messages import ParsedTurn, Tool


@dataclass(frozen=True, slots=True)
class Grammar:
    """How a family writes reasoning and calls."""

    reasoning_tags: tuple[str, str] | None
    calls: ToolGrammarName


def parse_text(
    text: str,
    grammar: Grammar,
    *,
    reasoning_open: bool,
    finish_reason: str,
    tools: Sequence[Tool] | None = None,
) -> ParsedTurn:
    """Parse a turn's text (no closing token). What does not parse stays in content, with a warning."""
    return grammar_named(grammar.calls).parse(
        text,
        reasoning_open=reasoning_open,
        finish_reason=finish_reason,
        tools=tools,
        reasoning_tags=grammar.reasoning_tags,
    )
