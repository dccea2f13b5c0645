"""Apertus: a JSON list of objects with one member, ``<|tools_prefix|>[{"name": {…}}]<|tools_suffix|>``."""

from __future__ import annotations

import re
from typing import ClassVar

from dressage_tito.grammars.base import ToolGrammar
from dressage_tito.grammars.jsoncall import typed_call
from dressage_tito.grammars.scan import Broken, CallFinder, Found, reader
from dressage_tito.jsonspan import read_object, skip_blank
from dressage_tito.messages import ToolCall

_OPEN, _CLOSE = "<|tools_prefix|>", "<|tools_suffix|>"


class _Finder(CallFinder):
    opening: ClassVar[str] = re.escape(_OPEN)
    before: ClassVar[tuple[str, ...]] = ()

    def find(self, start: int, after: int) -> Found | Broken:
        position = skip_blank(self.text, after)
        if not self.text.startswith("[", position):
            return Broken(after, _CLOSE, begun=False)
        calls: list[ToolCall] = []
        warnings: list[str] = []
        while not calls or self.text.startswith(",", position):
            found = read_object(self.text, position + 1)
            if isinstance(found, int):
                return Broken(found, _CLOSE)
            items, position = found
            if len(items) != 1 or not items[0].key or not isinstance(items[0].value, dict):
                return Broken(position, _CLOSE)
            call, odd = typed_call("", items[0].key, items[0].value, items[0].text, self.context.schemas)
            calls.append(call)
            warnings += odd
            position = skip_blank(self.text, position)
        if not self.text.startswith("]", position):
            return Broken(position, _CLOSE)
        return self.closed(tuple(calls), position + 1, _CLOSE, warnings)


APERTUS = ToolGrammar("apertus", reader(_Finder), control_literals_needed=(_OPEN, _CLOSE))
