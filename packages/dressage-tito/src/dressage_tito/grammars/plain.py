"""Turns of a family whose calls are not parsed: reasoning and content alone."""

from __future__ import annotations

from dressage_tito.grammars.base import Piece, Reading, ToolGrammar, ToolGrammarName, TurnContext
from dressage_tito.grammars.reasoning import read_reasoning


def plain(name: ToolGrammarName) -> ToolGrammar:
    """A grammar without calls."""
    return ToolGrammar(name, _read_unknown if name == "unknown" else _read)


def _read_unknown(text: str, context: TurnContext) -> Reading:
    reading = _read(text, context)
    if not context.tools:
        return reading
    note = "tool_grammar_unknown: calls of this model are not parsed; what it writes stays in the content"
    return Reading(reading.pieces, (*reading.warnings, note))


def _read(text: str, context: TurnContext) -> Reading:
    warnings: list[str] = []
    pieces, position = read_reasoning(text, context, warnings)
    if position < len(text):
        pieces.append(Piece("content", position, len(text)))
    return Reading(tuple(pieces), tuple(warnings))
