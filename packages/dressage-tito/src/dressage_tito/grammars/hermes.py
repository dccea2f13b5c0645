"""Hermes, Qwen2.5, Qwen3, SmolLM3: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``.

A model may put several calls into one block, as a list or one after the other.
"""

from __future__ import annotations

from typing import ClassVar

from dressage_tito.grammars.base import ToolGrammar
from dressage_tito.grammars.jsoncall import read_calls, read_list
from dressage_tito.grammars.scan import Broken, CallFinder, Found, reader
from dressage_tito.jsonspan import skip_blank

_CLOSE = "</tool_call>"


class _Finder(CallFinder):
    opening: ClassVar[str] = "<tool_call>"

    def find(self, start: int, after: int) -> Found | Broken:
        body = skip_blank(self.text, after)
        if not self.text.startswith(("{", "["), body):
            return Broken(after, _CLOSE, begun=False)
        read = read_list if self.text.startswith("[", body) else read_calls
        found = read(self.text, body, self.context.schemas)
        if isinstance(found, int):
            return Broken(found, _CLOSE)
        calls, warnings, end = found
        return self.closed(calls, end, _CLOSE, list(warnings))


HERMES = ToolGrammar("hermes", reader(_Finder), control_literals_needed=("<tool_call>", _CLOSE))
