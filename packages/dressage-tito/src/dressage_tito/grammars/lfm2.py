"""LFM2: Python calls in a list, ``<|tool_call_start|>[name(key='text', n=1)]<|tool_call_end|>``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from dressage_tito.grammars.base import ToolGrammar
from dressage_tito.grammars.jsoncall import read_list, typed_call
from dressage_tito.grammars.scan import Broken, CallFinder, Found, reader
from dressage_tito.grammars.values import parameter_names
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
        odd = _odd_names(self.context.schemas.get(name["name"]))
        python = PythonReader(self.text, _NEXT_CALL, names=odd)
        while not self.text.startswith(")", position):
            key, start = self._key(position, odd)
            value, text, position = python.argument(start)
            values[key] = value
            spelled.append(f"{python.quoted(key)}: {text}")
            position = skip_blank(self.text, position)
            if self.text.startswith(",", position):
                position = skip_blank(self.text, position + 1)
            elif not self.text.startswith(")", position):
                raise Stop(position)
        arguments = "{" + ", ".join(spelled) + "}"
        call, odd = typed_call("", name["name"], values, arguments, self.context.schemas)
        return call, odd, position + 1

    def _key(self, position: int, odd: Sequence[str]) -> tuple[str, int]:
        """A keyword and where its value begins."""
        for name in odd:
            if self.text.startswith(f"{name}=", position):
                return name, skip_blank(self.text, position + len(name) + 1)
        key = _KEY.match(self.text, position)
        if key is None:
            raise Stop(position)
        return key["key"], key.end()


def _odd_names(schema: object) -> list[str]:
    """The tool's parameters whose names are no keywords of Python, the longest first."""
    odd = [name for name in parameter_names(schema) if name and not _KEY.fullmatch(f"{name}=")]
    return sorted(odd, key=len, reverse=True)


LFM2 = ToolGrammar("lfm2", reader(_Finder), control_literals_needed=(_OPEN, _CLOSE))
