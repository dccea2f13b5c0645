"""MiniCPM5: ``<function name="…"><param name="…">…</param></function>``, odd text in a CDATA block."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

from dressage_tito.grammars.base import ToolGrammar
from dressage_tito.grammars.scan import Broken, CallFinder, Found, reader
from dressage_tito.grammars.tagged import TaggedParameters
from dressage_tito.grammars.values import RawParameter, call_of_texts, parameter_names

_OPEN, _CLOSE = '<function name="', "</function>"
_HEAD = re.compile(r'(?P<name>[^"<>\n]+)">')
_NAMES = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}
_NAMED = re.compile("&(" + "|".join(_NAMES) + ");")
_CDATA = ("<![CDATA[", "]]>")


class _Finder(CallFinder):
    opening: ClassVar[str] = re.escape(_OPEN)

    @cached_property
    def _parameters(self) -> TaggedParameters:
        return TaggedParameters(
            self.text,
            self.context.schemas,
            r'<param name="(?P<key>[^"<>\n]+)">',
            "</param>",
            _CLOSE,
            re.escape(_OPEN),
            re.escape(_OPEN) + _HEAD.pattern,
        )

    def find(self, start: int, after: int) -> Found | Broken:
        head = _HEAD.match(self.text, after)
        if head is None:
            return Broken(after, _CLOSE, begun=False)
        read = self._parameters.read(head.end(), parameter_names(self.context.schemas.get(head["name"])))
        if isinstance(read, int):
            return Broken(read, _CLOSE)
        parameters = [RawParameter(opening["key"], _bare(text)) for opening, text in read.found]
        call, odd = call_of_texts("", head["name"], parameters, self.context.schemas)
        found = self.closed((call,), read.end, _CLOSE, [*read.warnings, *odd])
        # A value that spells a call's beginning may spell its end too: then the turn's end must be known.
        if isinstance(found, Found) and self.text.find(_OPEN, after, read.end) >= 0:
            return replace(found, closed=False)
        return found


def _bare(text: str) -> str:
    """A value without its CDATA block; elsewhere the text is XML, where some characters have names."""
    opening, closing = _CDATA
    inner = text.strip()
    if inner.startswith(opening) and inner.endswith(closing) and len(inner) >= len(opening) + len(closing):
        return inner[len(opening) : -len(closing)]
    return _NAMED.sub(lambda match: _NAMES[match[1]], text)


MINICPM5 = ToolGrammar("minicpm5", reader(_Finder))
