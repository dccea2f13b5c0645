"""What a tool-call grammar is: a pure function from a turn's text to its pieces."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dressage_tito.messages import ParsedTurn, Tool, ToolCall

ToolGrammarName = Literal[
    "none",
    "unknown",
    "apertus",
    "cohere",
    "deepseek_dsml",
    "deepseek_v3",
    "deepseek_v3_1",
    "gemma4",
    "glm",
    "harmony",
    "hermes",
    "hunyuan3",
    "json_list",
    "kimi_k2",
    "kimi_k3",
    "lfm2",
    "llama3_json",
    "minicpm5",
    "minimax_m2",
    "minimax_m3",
    "mistral",
    "qwen3_coder",
    "seed_oss",
]

PieceKind = Literal["content", "reasoning", "call", "frame"]


@dataclass(frozen=True, slots=True)
class Piece:
    """One stretch ``text[start:end]`` of a turn. ``frame`` holds tags and blank space alone."""

    kind: PieceKind
    start: int
    end: int
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """A whole turn as pieces in order, without gap or overlap, and what was odd about it."""

    pieces: tuple[Piece, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TurnContext:
    """What a reader must know besides the text."""

    reasoning_tags: tuple[str, str] | None
    reasoning_open: bool
    finish_reason: str
    tools: Sequence[Tool] | None
    """None or empty: nothing was offered, so that no markup is a call."""
    schemas: Mapping[str, Any]
    """The offered tools' ``parameters`` by name."""


@dataclass(frozen=True, slots=True)
class ToolGrammar:
    """How a family writes reasoning, content and calls in a turn."""

    name: ToolGrammarName
    read: Callable[[str, TurnContext], Reading]
    carries_ids: bool = False
    """Calls name their own id, which the template prints again: it must never be changed."""
    control_literals_needed: tuple[str, ...] = ()
    """Texts that stand for control tokens where the family's tokenizer has them."""
    call_id: Callable[[str, int], str] = field(default=lambda name, index: "")
    """A native id for the call of a tool that has ``index`` calls before it; "" where none is carried."""
    around_probe: str = ""
    """A pattern for what a template prints around a call that has no marks of its own."""

    def parse(
        self,
        text: str,
        *,
        reasoning_open: bool,
        finish_reason: str,
        tools: Sequence[Tool] | None,
        reasoning_tags: tuple[str, str] | None,
    ) -> ParsedTurn:
        """A turn's text (no closing token needed). What does not parse stays in content, with a warning."""
        context = TurnContext(reasoning_tags, reasoning_open, finish_reason, tools, schemas_of(tools or ()))
        reading = self.read(text, context)
        return assemble(text, reading)

    def recognise(self, rendered: str, name: str, key: str, value: str) -> bool:
        """Whether this grammar reads what a template printed for one call back as exactly that call.

        ``rendered`` may hold the turn's header and closing text; ``value`` is a string argument.
        """
        if self.around_probe:
            rendered = re.sub(self.around_probe, "", rendered)
        parameters = {"type": "object", "properties": {key: {"type": "string"}}}
        turn = self.parse(
            rendered,
            reasoning_open=False,
            finish_reason="stop",
            tools=[{"type": "function", "function": {"name": name, "parameters": parameters}}],
            reasoning_tags=None,
        )
        return [(call.name, dict(call.arguments)) for call in turn.tool_calls] == [(name, {key: value})]


def assemble(text: str, reading: Reading) -> ParsedTurn:
    """The pieces joined kind by kind; a line end stands where a frame (or the line ends around a call, which
    are one) stood between two pieces of content."""
    content = ""
    framed = False
    for piece in reading.pieces:
        if piece.kind == "content":
            content += ("\n" if framed and content else "") + text[piece.start : piece.end]
            framed = False
        framed = framed or piece.kind == "frame"
    reasoning = [text[piece.start : piece.end] for piece in reading.pieces if piece.kind == "reasoning"]
    calls = tuple(call for piece in reading.pieces for call in piece.calls)
    return ParsedTurn(content, "\n".join(reasoning), calls, reading.warnings)


def schemas_of(tools: Sequence[Tool]) -> dict[str, Any]:
    """``parameters`` by tool name."""
    schemas: dict[str, Any] = {}
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            schemas[function["name"]] = function.get("parameters")
    return schemas
