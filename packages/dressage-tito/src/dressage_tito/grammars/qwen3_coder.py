"""Qwen3-Coder, Qwen3.5 and later, Nemotron 3: ``<function=…>`` and ``<parameter=…>`` in ``<tool_call>``.

Seed-OSS writes the same in ``<seed:tool_call>``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

from dressage_tito.grammars.base import ToolGrammar, TurnContext
from dressage_tito.grammars.scan import Broken, CallFinder, Found, reader
from dressage_tito.grammars.tagged import TaggedParameters
from dressage_tito.grammars.values import RawParameter, call_of_texts, parameter_names
from dressage_tito.messages import ToolCall

_HEAD = re.compile(r"\s*<function=(?P<name>[^<>\n]+)>")
_FUNCTION_END = re.compile(r"\s*</function>")
_NO_END = "unclosed_function: a function without its closing tag ends where its block does"


class _Finder(CallFinder):
    tag: ClassVar[str] = "tool_call"
    own_lines: ClassVar[bool] = True
    """The grammar puts a line end before and after each value."""
    opening: ClassVar[str] = "<tool_call>|<function="
    before: ClassVar[tuple[str, ...]] = ("\n\n", "\n")

    def __init__(self, text: str, context: TurnContext) -> None:
        super().__init__(text, context)
        self._close = f"</{self.tag}>"

    @cached_property
    def _parameters(self) -> TaggedParameters:
        next_function = r"(?=<function=[^<>\n]+>\s*+(?:<parameter=|</function>))"
        return TaggedParameters(
            self.text,
            self.context.schemas,
            r"<parameter=(?P<key>[^<>\n]+)>",
            "</parameter>",
            rf"</function>\s*+(?:</{self.tag}>|{next_function}|\Z)|</{self.tag}>\s*+\Z",
            rf"<{self.tag}>\s*+<function=",
            rf"(?:<{self.tag}>\s*+)?+<function=[^<>\n]+>",
        )

    def find(self, start: int, after: int) -> Found | Broken:
        if self.text.startswith("<function=", start):
            return Broken(after)
        if _HEAD.match(self.text, after) is None:
            return Broken(after, self._close, begun=False)
        calls: list[ToolCall] = []
        warnings: list[str] = []
        end = after
        while head := _HEAD.match(self.text, end):
            end = self._function(head, calls, warnings)
            if end < 0:
                return Broken(-end, self._close)
        found = self.closed(tuple(calls), end, self._close, warnings)
        # A value that spells a call's beginning may spell its end too: then the turn's end must be known.
        if isinstance(found, Found) and self.text.find(f"<{self.tag}>", after, found.end) >= 0:
            return replace(found, closed=False)
        return found

    def _function(self, head: re.Match[str], calls: list[ToolCall], warnings: list[str]) -> int:
        """Where this function ends, its call added; or, negative, how far what is none was read."""
        name = head["name"].strip()
        names = parameter_names(self.context.schemas.get(name))
        read = self._parameters.read(
            head.end(), names, to_tail=self.own_lines and self.context.finish_reason == "stop"
        )
        if isinstance(read, int):
            return -read
        tail = _FUNCTION_END.match(self.text, read.end)
        if tail is None and not self._block_ends(read.end):
            return -read.end
        parameters = [
            RawParameter(opening["key"].strip(), _inner_lines(text) if self.own_lines else text)
            for opening, text in read.found
        ]
        call, odd = call_of_texts("", name, parameters, self.context.schemas)
        calls.append(call)
        warnings += [*read.warnings, *([] if tail else [_NO_END]), *odd]
        return tail.end() if tail else read.end

    def _block_ends(self, position: int) -> bool:
        """Whether the block is closed here, and the turn with it."""
        return bool(re.compile(rf"{self._close}\s*+\Z").match(self.text, position))


class _Seed(_Finder):
    tag: ClassVar[str] = "seed:tool_call"
    own_lines: ClassVar[bool] = False
    opening: ClassVar[str] = "<seed:tool_call>|<function="


def _inner_lines(value: str) -> str:
    """A value without the line ends that the grammar puts around it."""
    return value.removeprefix("\n").removesuffix("\n")


QWEN3_CODER = ToolGrammar(
    "qwen3_coder", reader(_Finder), control_literals_needed=("<tool_call>", "</tool_call>")
)
SEED_OSS = ToolGrammar(
    "seed_oss", reader(_Seed), control_literals_needed=("<seed:tool_call>", "</seed:tool_call>")
)
