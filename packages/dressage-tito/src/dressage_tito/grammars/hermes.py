"""Hermes, Qwen2.5, Qwen3, SmolLM3: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``."""

from __future__ import annotations

from typing import ClassVar

from dressage_tito.grammars.base import ToolGrammar
from dressage_tito.grammars.jsoncall import call_of_object
from dressage_tito.grammars.scan import Broken, CallFinder, Found, reader
from dressage_tito.jsonspan import read_object, skip_blank

_CLOSE = "</tool_call>"


class _Finder(CallFinder):
    opening: ClassVar[str] = "<tool_call>"

    def find(self, start: int, after: int) -> Found | Broken:
        found = read_object(self.text, after)
        if isinstance(found, int):
            begun = self.text.startswith("{", skip_blank(self.text, after))
            return Broken(found if begun else after, _CLOSE, begun)
        items, end = found
        end = skip_blank(self.text, end)
        call = call_of_object(items, self.context.schemas)
        if call is None or not self.text.startswith(_CLOSE, end):
            return Broken(end, _CLOSE)
        return Found((call[0],), end + len(_CLOSE), warnings=tuple(call[1]))


HERMES = ToolGrammar("hermes", reader(_Finder), control_literals_needed=("<tool_call>", _CLOSE))
