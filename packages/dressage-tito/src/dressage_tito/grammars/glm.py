"""GLM-4.5 and later: ``<tool_call>name<arg_key>…</arg_key><arg_value>…</arg_value></tool_call>``."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

from dressage_tito.grammars.base import ToolGrammar
from dressage_tito.grammars.scan import Broken, CallFinder, Found, reader
from dressage_tito.grammars.tagged import TaggedParameters
from dressage_tito.grammars.values import RawParameter, call_of_texts, parameter_names

_CLOSE = "</tool_call>"
_NAME = re.compile(r"\s*(?P<name>[^\s<>{}\"]+)")


class _Finder(CallFinder):
    opening: ClassVar[str] = "<tool_call>"
    lead: ClassVar[tuple[str, ...]] = ("\n",)

    @cached_property
    def _parameters(self) -> TaggedParameters:
        return TaggedParameters(
            self.text,
            self.context.schemas,
            r"<arg_key>(?P<key>[^<>]+)</arg_key>\s*+<arg_value>",
            "</arg_value>",
            _CLOSE,
            r"<tool_call>\s*+[^\s<>{}\"]++\s*+<arg_key>",
            r"<tool_call>\s*+[^\s<>{}\"]++",
        )

    def find(self, start: int, after: int) -> Found | Broken:
        name = _NAME.match(self.text, after)
        if name is None:
            return Broken(after, _CLOSE, begun=False)
        read = self._parameters.read(name.end(), parameter_names(self.context.schemas.get(name["name"])))
        if isinstance(read, int):
            return Broken(read, _CLOSE)
        parameters = [RawParameter(opening["key"].strip(), text) for opening, text in read.found]
        call, odd = call_of_texts("", name["name"], parameters, self.context.schemas)
        found = self.closed((call,), read.end, _CLOSE, [*read.warnings, *odd])
        # A value that spells a call's beginning may spell its end too: then the turn's end must be known.
        if isinstance(found, Found) and self.text.find("<tool_call>", after, read.end) >= 0:
            return replace(found, closed=False)
        return found


GLM = ToolGrammar(
    "glm",
    reader(_Finder),
    control_literals_needed=("<tool_call>", _CLOSE, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
