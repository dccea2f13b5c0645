"""Kimi K2: ``functions.name:0`` is the call's id, its name and its place in one."""

from __future__ import annotations

import re
from typing import ClassVar

from dressage_tito.grammars.base import ToolGrammar
from dressage_tito.grammars.jsoncall import read_arguments, typed_call
from dressage_tito.grammars.scan import reader
from dressage_tito.grammars.section import SectionFinder
from dressage_tito.jsonspan import skip_blank
from dressage_tito.messages import ToolCall

_BEGIN, _END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
_ARGUMENTS = "<|tool_call_argument_begin|>"
_HEAD = re.compile(
    r"\s*(?P<id>(?:functions\.)?(?P<name>[^\s<>|{}]+?)(?::[0-9]+)?)\s*" + re.escape(_ARGUMENTS)
)


class _Finder(SectionFinder):
    opening: ClassVar[str] = f"{re.escape(_BEGIN)}|{re.escape(_CALL)}"
    before: ClassVar[tuple[str, ...]] = ()
    section: ClassVar[re.Pattern[str]] = re.compile(re.escape(_BEGIN))
    section_close: ClassVar[tuple[str, ...]] = (_END,)
    inner: ClassVar[str] = _CALL
    close: ClassVar[str] = _CALL_END

    def read(self, position: int) -> tuple[ToolCall, list[str], int] | int:
        head = _HEAD.match(self.text, position)
        if head is None:
            return position
        arguments = read_arguments(self.text, head.end())
        if isinstance(arguments, int):
            return arguments
        values, text, end = arguments
        name = self._name(head["name"])
        call, warnings = typed_call(head["id"], name, values, text, self.context.schemas)
        return call, warnings, skip_blank(self.text, end)

    def _name(self, written: str) -> str:
        """The tool's name; that of an offered tool where the id is written as another vendor's rules for ids
        leave it (``functions_name_0``, ``functionsname0``), which a model does that has seen such ids."""
        if written in self.context.schemas or not written.startswith("functions"):
            return written
        fitting = [
            name
            for name in self.context.schemas
            if re.fullmatch(f"functions[._]?{re.escape(name)}(?:[:_]?[0-9]+)?", written)
        ]
        return max(fitting, key=len, default=written)


def _call_id(name: str, index: int) -> str:
    return f"functions.{name}:{index}"


KIMI_K2 = ToolGrammar(
    "kimi_k2",
    reader(_Finder),
    carries_ids=True,
    control_literals_needed=(_BEGIN, _END, _CALL, _CALL_END, _ARGUMENTS),
    call_id=_call_id,
)
