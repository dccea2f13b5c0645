"""Qwen3-Coder, Qwen3.5 and later, Nemotron 3: ``<function=…>`` and ``<parameter=…>`` in ``<tool_call>``.

Seed-OSS writes the same in ``<seed:tool_call>``.
"""

from __future__ import annotations

import re
from typing import ClassVar

from dressage_tito.grammars.base import ToolGrammar, TurnContext
from dressage_tito.grammars.scan import Broken, CallFinder, Found, reader
from dressage_tito.grammars.tagged import TaggedParameters
from dressage_tito.grammars.values import RawParameter, call_of_texts

_HEAD = re.compile(r"\s*<function=(?P<name>[^<>\n]+)>")


class _Finder(CallFinder):
    tag: ClassVar[str] = "tool_call"
    own_lines: ClassVar[bool] = True
    """The grammar puts a line end before and after each value."""
    opening: ClassVar[str] = "<tool_call>|<function="
    before: ClassVar[tuple[str, ...]] = ("\n\n", "\n")

    def __init__(self, text: str, context: TurnContext) -> None:
        super().__init__(text, context)
        self._parameters = TaggedParameters(
            text,
            r"<parameter=(?P<key>[^<>\n]+)>",
            "</parameter>",
            rf"</function>\s*+</{self.tag}>",
            rf"<{self.tag}>\s*+<function=",
        )
        self._close = f"</{self.tag}>"
        self._tail = re.compile(rf"\s*</function>\s*{self._close}")

    def find(self, start: int, after: int) -> Found | Broken:
        if self.text.startswith("<function=", start):
            return Broken(after)
        head = _HEAD.match(self.text, after)
        if head is None:
            return Broken(after, self._close, begun=False)
        read = self._parameters.read(head.end())
        if isinstance(read, int):
            return Broken(read, self._close)
        found, end = read
        tail = self._tail.match(self.text, end)
        if tail is None:
            return Broken(end, self._close)
        parameters = [
            RawParameter(opening["key"].strip(), _inner_lines(text) if self.own_lines else text)
            for opening, text in found
        ]
        call, warnings = call_of_texts("", head["name"].strip(), parameters, self.context.schemas)
        # A value that spells a call's beginning may spell its end too: then the turn's end must be known.
        closed = self.text.find(f"<{self.tag}>", after, tail.end()) < 0
        return Found((call,), tail.end(), closed, tuple(warnings))


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
