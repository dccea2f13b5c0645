"""Qwen3-Coder, Qwen3.5 and later, Nemotron 3: ``<function=…>`` and ``<parameter=…>`` in ``<tool_call>``."""

from __future__ import annotations

import re
from typing import ClassVar

from dressage_tito.grammars.base import ToolGrammar, TurnContext
from dressage_tito.grammars.scan import Broken, CallFinder, Found, reader
from dressage_tito.grammars.tagged import TaggedParameters
from dressage_tito.grammars.values import RawParameter, call_of_texts

_CLOSE = "</tool_call>"
_HEAD = re.compile(r"\s*<function=(?P<name>[^<>\n]+)>")
_TAIL = re.compile(r"\s*</function>\s*</tool_call>")


class _Finder(CallFinder):
    opening: ClassVar[str] = "<tool_call>|<function="
    before: ClassVar[tuple[str, ...]] = ("\n\n", "\n")

    def __init__(self, text: str, context: TurnContext) -> None:
        super().__init__(text, context)
        self._parameters = TaggedParameters(
            text,
            r"<parameter=(?P<key>[^<>\n]+)>",
            "</parameter>",
            r"</function>\s*+</tool_call>",
            r"<tool_call>\s*+<function=",
        )

    def find(self, start: int, after: int) -> Found | Broken:
        if self.text.startswith("<function=", start):
            return Broken(after)
        head = _HEAD.match(self.text, after)
        if head is None:
            return Broken(after, _CLOSE, begun=False)
        read = self._parameters.read(head.end())
        if isinstance(read, int):
            return Broken(read, _CLOSE)
        found, end = read
        tail = _TAIL.match(self.text, end)
        if tail is None:
            return Broken(end, _CLOSE)
        parameters = [RawParameter(opening["key"].strip(), _inner_lines(text)) for opening, text in found]
        call, warnings = call_of_texts("", head["name"].strip(), parameters, self.context.schemas)
        # A value that spells a call's beginning may spell its end too: then the turn's end must be known.
        closed = self.text.find("<tool_call>", after, tail.end()) < 0
        return Found((call,), tail.end(), closed, tuple(warnings))


def _inner_lines(value: str) -> str:
    """A value without the line ends that the grammar puts around it."""
    return value.removeprefix("\n").removesuffix("\n")


QWEN3_CODER = ToolGrammar("qwen3_coder", reader(_Finder), control_literals_needed=("<tool_call>", _CLOSE))
