"""MiniMax M2, DeepSeek V3.2 and V4: ``<invoke name="…">`` with ``<parameter name="…">`` in a section."""

from __future__ import annotations

import re
from typing import ClassVar

from dressage_tito.grammars.base import ToolGrammar, TurnContext
from dressage_tito.grammars.scan import reader
from dressage_tito.grammars.section import SectionFinder
from dressage_tito.grammars.tagged import TaggedParameters
from dressage_tito.grammars.values import RawParameter, call_of_texts
from dressage_tito.messages import ToolCall

_NAME = re.compile(r'(?P<name>[^"<>\n]+)">')


class _Invoke(SectionFinder):
    raw: ClassVar[bool] = True
    parameter: ClassVar[str]
    parameter_close: ClassVar[str]

    def __init__(self, text: str, context: TurnContext) -> None:
        super().__init__(text, context)
        between = f"(?:(?:{'|'.join(self.section_close)})\\s*+(?:{self.section.pattern})\\s*+)?+"
        self._parameters = TaggedParameters(
            text, self.parameter, self.parameter_close, self.close, between + self.inner
        )

    def read(self, position: int) -> tuple[ToolCall, list[str], int] | int:
        name = _NAME.match(self.text, position)
        if name is None:
            return position
        read = self._parameters.read(name.end())
        if isinstance(read, int):
            return read
        found, end = read
        if not self.text.startswith(self.close, end):
            return end
        parameters = [
            RawParameter(opening["key"], text, is_json=opening.groupdict().get("string") == "false")
            for opening, text in found
        ]
        call, warnings = call_of_texts("", name["name"], parameters, self.context.schemas)
        return call, warnings, end


class _MiniMax(_Invoke):
    opening: ClassVar[str] = '<minimax:tool_call>|<invoke name="'
    section: ClassVar[re.Pattern[str]] = re.compile("<minimax:tool_call>")
    section_close: ClassVar[tuple[str, ...]] = ("</minimax:tool_call>",)
    inner: ClassVar[str] = '<invoke name="'
    close: ClassVar[str] = "</invoke>"
    parameter: ClassVar[str] = r'<parameter name="(?P<key>[^"<>\n]+)">'
    parameter_close: ClassVar[str] = "</parameter>"


class _Dsml(_Invoke):
    before: ClassVar[tuple[str, ...]] = ("\n\n", "\n")
    opening: ClassVar[str] = '<｜DSML｜(?:function_calls|tool_calls)>|<｜DSML｜invoke name="'
    section: ClassVar[re.Pattern[str]] = re.compile("<｜DSML｜(?:function_calls|tool_calls)>")
    section_close: ClassVar[tuple[str, ...]] = ("</｜DSML｜function_calls>", "</｜DSML｜tool_calls>")
    inner: ClassVar[str] = '<｜DSML｜invoke name="'
    close: ClassVar[str] = "</｜DSML｜invoke>"
    parameter: ClassVar[str] = (
        r'<｜DSML｜parameter name="(?P<key>[^"<>\n]+)"(?: string="(?P<string>true|false)")?>'
    )
    parameter_close: ClassVar[str] = "</｜DSML｜parameter>"


MINIMAX_M2 = ToolGrammar(
    "minimax_m2",
    reader(_MiniMax),
    control_literals_needed=("<minimax:tool_call>", "</minimax:tool_call>"),
)
DEEPSEEK_DSML = ToolGrammar("deepseek_dsml", reader(_Dsml), control_literals_needed=("｜DSML｜",))
