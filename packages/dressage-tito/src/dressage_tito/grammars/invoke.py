"""MiniMax M2, DeepSeek V3.2 and V4: ``<invoke name="…">`` with ``<parameter name="…">`` in a section.

Others write the same in other words. Kimi K3: ``<|open|>call tool="…"<|sep|>`` with
``<|open|>argument key="…"``. Hunyuan 3: ``<tool_call:opensource>…<tool_sep:opensource>`` with pairs of
``<arg_key:opensource>`` and ``<arg_value:opensource>``.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import ClassVar

from dressage_tito.grammars.base import ToolGrammar
from dressage_tito.grammars.jsoncall import read_arguments, typed_call
from dressage_tito.grammars.scan import reader
from dressage_tito.grammars.section import SectionFinder
from dressage_tito.grammars.tagged import TaggedParameters
from dressage_tito.grammars.values import RawParameter, call_of_texts, parameter_names
from dressage_tito.jsonspan import skip_blank
from dressage_tito.messages import ToolCall

_HEAD = re.compile(r'(?P<name>[^"<>\n]+)">')


class _Invoke(SectionFinder):
    raw: ClassVar[bool] = True
    head: ClassVar[re.Pattern[str]] = _HEAD
    """What follows ``inner``, with the group ``name``."""
    parameter: ClassVar[str]
    """A pattern with the group ``key``, and ``text`` where it may say whether the value is text."""
    parameter_close: ClassVar[str]
    json_too: ClassVar[bool] = False
    """A model may write the arguments as a JSON object in the parameters' place."""

    @cached_property
    def _parameters(self) -> TaggedParameters:
        closes = "|".join(map(re.escape, self.section_close))
        between = f"(?:(?:{closes})\\s*+(?:{self.section.pattern})\\s*+)?+"
        return TaggedParameters(
            self.text,
            self.context.schemas,
            self.parameter,
            re.escape(self.parameter_close),
            re.escape(self.close),
            between + re.escape(self.inner),
            re.escape(self.inner) + self.head.pattern,
        )

    def read(self, position: int) -> tuple[ToolCall, list[str], int] | int:
        head = self.head.match(self.text, position)
        if head is None:
            return position
        name = self.attribute(head["name"])
        if self.json_too and self.text.startswith("{", skip_blank(self.text, head.end())):
            arguments = read_arguments(self.text, head.end())
            if isinstance(arguments, int):
                return arguments
            call, odd = typed_call("", name, arguments[0], arguments[1], self.context.schemas)
            return call, odd, skip_blank(self.text, arguments[2])
        read = self._parameters.read(head.end(), parameter_names(self.context.schemas.get(name)))
        if isinstance(read, int):
            return read
        parameters = [
            RawParameter(self.attribute(opening["key"]), text, self._is_json(opening))
            for opening, text in read.found
        ]
        call, odd = call_of_texts("", name, parameters, self.context.schemas)
        return call, [*read.warnings, *odd], read.end

    @staticmethod
    def attribute(text: str) -> str:
        """A name as it was meant, from what stands in its quotes."""
        return text

    @staticmethod
    def _is_json(opening: re.Match[str]) -> bool:
        return opening.groupdict().get("text") not in {None, "true", "string"}


class _MiniMax(_Invoke):
    opening: ClassVar[str] = '<minimax:tool_call>|<invoke name="'
    section: ClassVar[re.Pattern[str]] = re.compile("<minimax:tool_call>")
    section_close: ClassVar[tuple[str, ...]] = ("</minimax:tool_call>",)
    inner: ClassVar[str] = '<invoke name="'
    close: ClassVar[str] = "</invoke>"
    parameter: ClassVar[str] = r'<parameter name="(?P<key>[^"<>\n]+)">'
    parameter_close: ClassVar[str] = "</parameter>"


class _Dsml(_Invoke):
    json_too: ClassVar[bool] = True
    before: ClassVar[tuple[str, ...]] = ("\n\n", "\n")
    opening: ClassVar[str] = '<｜DSML｜(?:function_calls|tool_calls)>|<｜DSML｜invoke name="'
    section: ClassVar[re.Pattern[str]] = re.compile("<｜DSML｜(?:function_calls|tool_calls)>")
    section_close: ClassVar[tuple[str, ...]] = ("</｜DSML｜function_calls>", "</｜DSML｜tool_calls>")
    inner: ClassVar[str] = '<｜DSML｜invoke name="'
    close: ClassVar[str] = "</｜DSML｜invoke>"
    parameter: ClassVar[str] = (
        r'<｜DSML｜parameter name="(?P<key>[^"<>\n]+)"(?: string="(?P<text>true|false)")?>'
    )
    parameter_close: ClassVar[str] = "</｜DSML｜parameter>"


class _KimiK3(_Invoke):
    opening: ClassVar[str] = r'<\|open\|>tools<\|sep\|>|<\|open\|>call tool="'
    before: ClassVar[tuple[str, ...]] = ("<|close|>response<|sep|>",)
    lead: ClassVar[tuple[str, ...]] = ("<|open|>response<|sep|>",)
    trail: ClassVar[tuple[str, ...]] = (
        "<|close|>response<|sep|><|close|>message<|sep|>",
        "<|close|>response<|sep|>",
        "<|close|>message<|sep|>",
    )
    section: ClassVar[re.Pattern[str]] = re.compile(r"<\|open\|>tools<\|sep\|>")
    section_close: ClassVar[tuple[str, ...]] = ("<|close|>tools<|sep|>",)
    inner: ClassVar[str] = '<|open|>call tool="'
    close: ClassVar[str] = "<|close|>call<|sep|>"
    head: ClassVar[re.Pattern[str]] = re.compile(r'(?P<name>[^"<>\n]+)"(?: index="[0-9]+")?<\|sep\|>')
    parameter: ClassVar[str] = r'<\|open\|>argument key="(?P<key>[^"\n]+)" type="(?P<text>[a-z]+)"<\|sep\|>'
    parameter_close: ClassVar[str] = "<|close|>argument<|sep|>"

    @staticmethod
    def attribute(text: str) -> str:
        """The family writes these two in another way."""
        return text.replace("&quot;", '"').replace("&amp;", "&")


class _Hunyuan3(_Invoke):
    opening: ClassVar[str] = "<tool_calls?:opensource>"
    section: ClassVar[re.Pattern[str]] = re.compile("<tool_calls:opensource>")
    section_close: ClassVar[tuple[str, ...]] = ("</tool_calls:opensource>",)
    inner: ClassVar[str] = "<tool_call:opensource>"
    close: ClassVar[str] = "</tool_call:opensource>"
    head: ClassVar[re.Pattern[str]] = re.compile(r"\s*(?P<name>[^\s<>]+)\s*<tool_sep:opensource>")
    parameter: ClassVar[str] = (
        r"<arg_key:opensource>(?P<key>[^<>]+)</arg_key:opensource>\s*+<arg_value:opensource>"
    )
    parameter_close: ClassVar[str] = "</arg_value:opensource>"


MINIMAX_M2 = ToolGrammar(
    "minimax_m2",
    reader(_MiniMax),
    control_literals_needed=("<minimax:tool_call>", "</minimax:tool_call>"),
)
DEEPSEEK_DSML = ToolGrammar("deepseek_dsml", reader(_Dsml), control_literals_needed=("｜DSML｜",))
KIMI_K3 = ToolGrammar(
    "kimi_k3", reader(_KimiK3), control_literals_needed=("<|open|>", "<|close|>", "<|sep|>")
)
HUNYUAN3 = ToolGrammar(
    "hunyuan3",
    reader(_Hunyuan3),
    control_literals_needed=("<tool_calls:opensource>", "<tool_call:opensource>", "<tool_sep:opensource>"),
)
