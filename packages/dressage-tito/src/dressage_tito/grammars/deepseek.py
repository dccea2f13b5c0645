"""DeepSeek V3, R1 (``type<sep>name`` and a fenced JSON) and V3.1 (``name<sep>{…}``) in one section."""

from __future__ import annotations

import re
from typing import ClassVar

from dressage_tito.grammars.base import ToolGrammar
from dressage_tito.grammars.jsoncall import read_arguments, typed_call
from dressage_tito.grammars.scan import reader
from dressage_tito.grammars.section import SectionFinder
from dressage_tito.jsonspan import skip_blank
from dressage_tito.messages import ToolCall

_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END, _SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_FENCED = re.compile(r"\s*[^\s<>｜]+<｜tool▁sep｜>(?P<name>[^\s<>｜`{}]+)\s*```json(?=\s)")
_BARE = re.compile(r"\s*(?P<name>[^\s<>｜`{}]+)\s*<｜tool▁sep｜>")


class _DeepSeek(SectionFinder):
    opening: ClassVar[str] = f"{_BEGIN}|{_CALL}"
    before: ClassVar[tuple[str, ...]] = ()
    section: ClassVar[re.Pattern[str]] = re.compile(_BEGIN)
    section_close: ClassVar[tuple[str, ...]] = (_END,)
    inner: ClassVar[str] = _CALL
    close: ClassVar[str] = _CALL_END
    head: ClassVar[re.Pattern[str]]
    fence: ClassVar[str]

    def read(self, position: int) -> tuple[ToolCall, list[str], int] | int:
        head = self.head.match(self.text, position)
        if head is None:
            return position
        arguments = read_arguments(self.text, head.end())
        if isinstance(arguments, int):
            return arguments
        values, text, end = arguments
        end = skip_blank(self.text, end)
        if not self.text.startswith(self.fence, end):
            return end
        call, warnings = typed_call("", head["name"], values, text, self.context.schemas)
        return call, warnings, skip_blank(self.text, end + len(self.fence))


class _V3(_DeepSeek):
    head: ClassVar[re.Pattern[str]] = _FENCED
    fence: ClassVar[str] = "```"


class _V31(_DeepSeek):
    head: ClassVar[re.Pattern[str]] = _BARE
    fence: ClassVar[str] = ""


_MARKS = (_BEGIN, _END, _CALL, _CALL_END, _SEP)
DEEPSEEK_V3 = ToolGrammar("deepseek_v3", reader(_V3), control_literals_needed=_MARKS)
DEEPSEEK_V3_1 = ToolGrammar("deepseek_v3_1", reader(_V31), control_literals_needed=_MARKS)
