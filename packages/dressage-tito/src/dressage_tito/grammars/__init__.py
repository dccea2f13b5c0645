"""Tool-call and reasoning grammars, one family's way of writing a file.

A template's grammar is found by trying each one on the template's own rendering of a known call:
``[name for name, grammar in GRAMMARS.items() if grammar.recognise(text, name, key, value)]``. Where a
grammar carries ids (Kimi K2 prints nothing else of a call's name), the probe's id must be
``grammar.call_id(name, 0)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dressage_tito.grammars.apertus import APERTUS
from dressage_tito.grammars.base import ToolGrammar, ToolGrammarName
from dressage_tito.grammars.cohere import COHERE
from dressage_tito.grammars.deepseek import DEEPSEEK_V3, DEEPSEEK_V3_1
from dressage_tito.grammars.gemma4 import GEMMA4
from dressage_tito.grammars.glm import GLM
from dressage_tito.grammars.harmony import HARMONY
from dressage_tito.grammars.hermes import HERMES
from dressage_tito.grammars.invoke import DEEPSEEK_DSML, HUNYUAN3, KIMI_K3, MINIMAX_M2
from dressage_tito.grammars.json_list import JSON_LIST
from dressage_tito.grammars.kimi import KIMI_K2
from dressage_tito.grammars.lfm2 import LFM2
from dressage_tito.grammars.llama3 import LLAMA3_JSON
from dressage_tito.grammars.minicpm5 import MINICPM5
from dressage_tito.grammars.minimax_m3 import MINIMAX_M3
from dressage_tito.grammars.mistral import MISTRAL
from dressage_tito.grammars.plain import plain
from dressage_tito.grammars.qwen3_coder import QWEN3_CODER, SEED_OSS

REASONING_TAGS: tuple[tuple[str, str], ...] = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<think:opensource>", "</think:opensource>"),
)
"""Opening and closing tags of reasoning that families use (harmony writes channels instead)."""

_ALL = (
    HERMES,
    QWEN3_CODER,
    GLM,
    DEEPSEEK_V3,
    DEEPSEEK_V3_1,
    DEEPSEEK_DSML,
    KIMI_K2,
    KIMI_K3,
    HARMONY,
    MINIMAX_M2,
    MISTRAL,
    LLAMA3_JSON,
    GEMMA4,
    LFM2,
    COHERE,
    JSON_LIST,
    SEED_OSS,
    HUNYUAN3,
    MINIMAX_M3,
    MINICPM5,
    APERTUS,
)
GRAMMARS: Mapping[ToolGrammarName, ToolGrammar] = MappingProxyType(
    {grammar.name: grammar for grammar in _ALL}
)
"""Every grammar that parses calls. At most one of them recognises a template's rendering."""


def grammar_named(name: ToolGrammarName) -> ToolGrammar:
    """The grammar of this name; ``none`` and ``unknown`` parse reasoning alone. Raises KeyError."""
    return plain(name) if name in ("none", "unknown") else GRAMMARS[name]


__all__ = ["GRAMMARS", "REASONING_TAGS", "ToolGrammar", "ToolGrammarName", "grammar_named"]
