"""A sampled turn's text as content, reasoning and tool calls.

One pure function of the whole text, so that how a turn arrived (streamed or not, split anywhere) changes
nothing. Whether the turn begins inside reasoning is told by the prompt's tail, never read from the output.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dressage_tito.coerce import coerce_arguments
from dressage_tito.jsonspan import JsonItem, read_object, skip_blank
from dressage_tito.messages import ParsedTurn, Tool, ToolCall

_CALL_OPEN = "<tool_call>"
_CALL_CLOSE = "</tool_call>"


@dataclass(frozen=True, slots=True)
class Grammar:
    """How a family writes reasoning and calls. ``hermes``: ``<tool_call>{json}</tool_call>``."""

    reasoning_tags: tuple[str, str] | None
    hermes: bool


def parse_text(
    text: str,
    grammar: Grammar,
    *,
    reasoning_open: bool,
    finish_reason: str,
    tools: Sequence[Tool] | None = None,
) -> ParsedTurn:
    """Parse a turn's text (no closing token). What does not parse stays in content, with a warning."""
    warnings: list[str] = []
    reasoning, rest = _split_reasoning(text, grammar.reasoning_tags, reasoning_open, warnings)
    if rest is None:
        return ParsedTurn("", reasoning, (), tuple(warnings))
    if not grammar.hermes:
        return ParsedTurn(rest, reasoning, (), tuple(warnings))
    if not tools:
        if _CALL_OPEN in rest:
            warnings.append("tool_call_without_tools: the turn writes a call, but no tools were offered")
        return ParsedTurn(rest, reasoning, (), tuple(warnings))
    scan = _CallScan(rest, grammar.reasoning_tags, tools, warnings)
    scan.run()
    if scan.unfinished and finish_reason == "stop":
        warnings.append("unclosed_tool_call: the turn ended inside a call")
    return ParsedTurn("".join(scan.content), reasoning, tuple(scan.calls), tuple(warnings))


def _split_reasoning(
    text: str, tags: tuple[str, str] | None, is_open: bool, warnings: list[str]
) -> tuple[str, str | None]:
    """Reasoning and what follows it; None follows reasoning that was not closed."""
    if tags is None:
        return "", text
    opening, closing = tags
    body = text.lstrip()
    if body.startswith(opening):
        # Some models write the opening tag again after a prompt that holds it.
        text, is_open = body[len(opening) :], True
    if not is_open:
        return "", text
    inside, closed, rest = text.partition(closing)
    reasoning = inside.strip("\n")
    if not closed:
        warnings.append("unclosed_reasoning: the turn ended inside its reasoning")
        return reasoning, None
    return reasoning, rest.lstrip("\n")


class _CallScan:
    """Walks a text once, from call to call."""

    def __init__(
        self, text: str, tags: tuple[str, str] | None, tools: Sequence[Tool], warnings: list[str]
    ) -> None:
        self.content: list[str] = []
        self.calls: list[ToolCall] = []
        self.unfinished = False
        self._text = text
        self._tags = tags
        self._schemas = _schemas(tools)
        self._warnings = warnings
        marks = [_CALL_OPEN] + ([tags[0]] if tags else [])
        self._next = re.compile("|".join(re.escape(mark) for mark in marks))

    def run(self) -> None:
        position = kept = 0
        after_call = False
        while match := self._next.search(self._text, position):
            if match.group() != _CALL_OPEN:
                position = self._skip_thinking(match.end())
                continue
            end = self._call(match.end())
            if end is None:
                position = self._broken(match.end())
                continue
            self._keep(self._text[kept : match.start()], before_call=True, after_call=after_call)
            position = kept = end
            after_call = True
        self._keep(self._text[kept:], before_call=False, after_call=after_call)

    def _keep(self, text: str, *, before_call: bool, after_call: bool) -> None:
        """Content between calls, less the line ends that the grammar itself puts around a call."""
        if after_call and not text.strip():
            return
        if after_call and text.startswith("\n"):
            text = text[1:]
        if before_call and text.endswith("\n"):
            text = text[:-1]
        self.content.append(text)

    def _skip_thinking(self, position: int) -> int:
        """Thinking that begins in mid-content stays content, and a call drafted in it is none."""
        assert self._tags is not None
        self._warnings.append("reasoning_tag_in_content: a later reasoning block was left in the content")
        end = self._text.find(self._tags[1], position)
        return len(self._text) if end < 0 else end + len(self._tags[1])

    def _call(self, position: int) -> int | None:
        """Read the call whose body begins here; its end, or None where it is no whole call."""
        found = read_object(self._text, position)
        if found is None:
            return None
        items, end = found
        end = skip_blank(self._text, end)
        if not self._text.startswith(_CALL_CLOSE, end):
            return None
        call = self._tool_call(items)
        if call is None:
            return None
        self.calls.append(call)
        return end + len(_CALL_CLOSE)

    def _tool_call(self, items: list[JsonItem]) -> ToolCall | None:
        fields = {item.key: item for item in items}
        name = fields.get("name")
        if name is None or not isinstance(name.value, str) or not name.value:
            return None
        arguments = fields.get("arguments") or fields.get("parameters")
        if arguments is None or arguments.value is None:
            return ToolCall("", name.value, {}, "{}")
        if not isinstance(arguments.value, dict):
            return None
        values, warnings = coerce_arguments(arguments.value, self._schemas.get(name.value))
        self._warnings += [f"argument_type: {name.value}: {warning}" for warning in warnings]
        return ToolCall("", name.value, values, arguments.text)

    def _broken(self, position: int) -> int:
        """Where to go on after a call that does not parse: it stays content up to its closing tag."""
        end = self._text.find(_CALL_CLOSE, position)
        if end < 0:
            self.unfinished = True
            self._warnings.append("incomplete_tool_call: a call without its end was left in the content")
            return len(self._text)
        self._warnings.append(
            "malformed_tool_call: a call that is no object with a name was left in the content"
        )
        return end + len(_CALL_CLOSE)


def _schemas(tools: Sequence[Tool]) -> dict[str, Any]:
    schemas: dict[str, Any] = {}
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            schemas[function["name"]] = function.get("parameters")
    return schemas
