"""Nemotron Nano v2, Apriel, MiniMax M1: JSON calls in one block, as a list or one after the other.

``<TOOLCALL>[{"name": …, "arguments": {…}}]</TOOLCALL>``, or ``<tool_calls>`` with a list or with lines.
"""

from __future__ import annotations

from typing import ClassVar

from dressage_tito.grammars.base import ToolGrammar
from dressage_tito.grammars.jsoncall import call_of_object, read_list
from dressage_tito.grammars.scan import Broken, CallFinder, Found, reader
from dressage_tito.jsonspan import read_object, skip_blank
from dressage_tito.messages import ToolCall


class _Finder(CallFinder):
    opening: ClassVar[str] = "<TOOLCALL>|<tool_calls>"

    def find(self, start: int, after: int) -> Found | Broken:
        close = "</" + self.text[start + 1 : after]
        body = skip_blank(self.text, after)
        if self.text.startswith("[", body):
            found = read_list(self.text, body, self.context.schemas)
        elif self.text.startswith("{", body):
            found = self._lines(body)
        else:
            return Broken(after, close, begun=False)
        if isinstance(found, int):
            return Broken(found, close)
        calls, warnings, end = found
        end = skip_blank(self.text, end)
        if not self.text.startswith(close, end):
            return Broken(end, close)
        return Found(calls, end + len(close), warnings=warnings)

    def _lines(self, position: int) -> tuple[tuple[ToolCall, ...], tuple[str, ...], int] | int:
        calls: list[ToolCall] = []
        warnings: list[str] = []
        while self.text.startswith("{", skip_blank(self.text, position)):
            found = read_object(self.text, position)
            if isinstance(found, int):
                return found
            call = call_of_object(found[0], self.context.schemas)
            if call is None:
                return found[1]
            calls.append(call[0])
            warnings += call[1]
            position = found[1]
        return tuple(calls), tuple(warnings), position


JSON_LIST = ToolGrammar(
    "json_list",
    reader(_Finder),
    control_literals_needed=("<TOOLCALL>", "</TOOLCALL>", "<tool_calls>", "</tool_calls>"),
)
