"""Tool-call and reasoning grammars, one family's way of writing a file.

A template's grammar is found by trying each one on the template's own rendering of a known call:
``[name for name, grammar in GRAMMARS.items() if grammar.recognise(text, name, key, value)]``. Where a
grammar carries ids (Kimi K2 prints nothing else of a call's name), the probe's id must be
``grammar.call_id(name, 0)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dressage_tito.grammars.base import ToolGrammar, ToolGrammarName
from dressage_tito.grammars.hermes import HERMES
from dressage_tito.grammars.plain import plain

REASONING_TAGS: tuple[tuple[str, str], ...] = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought\n", "<channel|>"),
)
"""Opening and closing tags of reasoning that families use (harmony writes channels instead)."""

GRAMMARS: Mapping[ToolGrammarName, ToolGrammar] = MappingProxyType(
    {grammar.name: grammar for grammar in (HERMES,)}
)
"""Every grammar that parses calls. At most one of them recognises a template's rendering."""


def grammar_named(name: ToolGrammarName) -> ToolGrammar:
    """The grammar of this name; ``none`` and ``unknown`` parse reasoning alone. Raises KeyError."""
    return plain(name) if name in ("none", "unknown") else GRAMMARS[name]


__all__ = ["GRAMMARS", "REASONING_TAGS", "ToolGrammar", "ToolGrammarName", "grammar_named"]
