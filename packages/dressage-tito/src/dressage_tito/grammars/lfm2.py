"""LFM2: Python calls in a list, ``<|tool_call_start|>[name(key='text', n=1)]<|tool_call_end|>``."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from dressage_tito.grammars.base import ToolGrammar
from dressage_tito.grammars.jsoncall import read_list, typed_call
from dressage_tito.grammars.scan import Broken, CallFinder, Found, reader
from dressage_tito.jsonspan import skip_blank
from dressage_tito.messages import ToolCall
from dressage_tito.pyvalue import PythonReader, Stop

_OPEN, _CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
_NEXT_CALL = re.compile(r"<\|tool_call_end\|>\s*+<\|tool_call_start\|>")
_NAME = re.compile(r"\s*(?P<name>[^\s()\[\]{}=,'\"]+)\s*\(\s*")
_KEY = re.compile(r"(?P<key>[^\s()\[\]{}=,'\"]+)\s*=\s*")


class _Finder(CallFinder):
    opening: ClassVar[str] = re.escape(_OPEN)
    before: ClassVar[tuple[str, ...]] = ()

    def find(self, start: int, after: int) -> Found | Broken:
        body = skip_blank(self.text, after)
        if re.compile(r"\[\s*\{").match(self.text, body):
            listed = read_list(self.text, body, self.context.schemas)
            if isinstance(listed, int):
                return Broken(listed, _CLOSE)
            calls, warnings, end = listed
        else:
            try:
                calls, warnings, end = self._calls(body)
            except Stop as stop:
                return Broken(stop.position, _CLOSE)
        return self.closed(calls, end, _CLOSE, list(warnings))

    def _calls(self, position: int) -> tuple[tuple[ToolCall, ...], tuple[str, ...], int]:
        calls: list[ToolCall] = []
        warnings: list[str] = []
        if not self.text.startswith("[", position):
            raise Stop(position)
        while True:
            call, odd, position = self._call(position + 1)
            calls.append(call)
            warnings += odd
            position = skip_blank(self.text, position)
            if self.text.startswith("]", position):
                return tuple(calls), tuple(warnings), position + 1
            if not self.text.startswith(",", position):
                raise Stop(position)
            end = skip_blank(self.text, position + 1)
            if self.text.startswith("]", end):
                return tuple(calls), tuple(warnings), end + 1

    def _call(self, position: int) -> tuple[ToolCall, list[str], int]:
        name = _NAME.match(self.text, position)
        if name is None:
            raise Stop(position)
        position = name.end()
        values: dict[str, Any] = {}
        spelled: list[str] = []
        python = PythonReader(self.text, _NEXT_CALL)
        while not self.text.startswith(")", position):
            key = _KEY.match(self.text, position)
            if key is None:
                raise Stop(position)
            value, text, position = python.argument(key.end())
            values[key["key"]] = value
            spelled.append(f"{python.quoted(key['key'])}: {text}")
            position = skip_blank(self.text, position)
            if self.text.startswith(",", position):
                position = skip_blank(self.text, position + 1)
            elif not self.text.startswith(")", position):
                raise Stop(position)
        arguments = "{" + ", ".join(spelled) + "}"
        call, odd = typed_call("", name["name"], values, arguments, self.context.schemas)
        return call, odd, position + 1


LFM2 = ToolGrammar("lfm2", reader(_Finder), control_literals_needed=(_OPEN, _CLOSE))
