"""Turns of a family whose calls are not parsed: reasoning and content alone."""

from __future__ import annotations

from dressage_tito.grammars.base import Piece, Reading, ToolGrammar, ToolGrammarName, TurnContext
from dressage_tito.grammars.reasoning import read_reasoning


def plain(name: ToolGrammarName) -> ToolGrammar:
    """A grammar without calls."""
    return ToolGrammar(name, _read)


def _read(text: str, context: TurnContext) -> Reading:
    warnings: list[str] = []
    pieces, position = read_reasoning(text, context, warnings)
    if position < len(text):
        pieces.append(Piece("content", position, len(text)))
    return Reading(tuple(pieces), tuple(warnings))
