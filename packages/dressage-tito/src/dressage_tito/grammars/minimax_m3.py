"""MiniMax M3: ``<invoke name="…">`` with an element for each parameter, objects and lists as elements in it.

A mark (``]<]minimax[>[``) stands before each tag, so that a value may hold tags of its own:
``@<invoke name="f">@<a>text@</a>@<list>@<item>1@</item>@</list>@</invoke>`` in ``@<tool_call>``.
"""

from __future__ import annotations

import re
from typing import ClassVar

from dressage_tito.grammars.base import ToolGrammar
from dressage_tito.grammars.scan import reader
from dressage_tito.grammars.section import SectionFinder
from dressage_tito.grammars.values import Raw, call_of_values
from dressage_tito.jsonspan import skip_blank
from dressage_tito.messages import ToolCall

_MARK = "]<]minimax[>["
_HEAD = re.compile(r'(?P<name>[^"<>\n]+)">')
_OPEN = re.compile(r"\s*+" + re.escape(_MARK) + r"<(?P<key>[^<>/\n][^<>\n]*)>")
_BLANK = re.compile(r"\s*+(?=" + re.escape(_MARK) + ")")
_MAX_DEPTH = 100


class _Finder(SectionFinder):
    opening: ClassVar[str] = re.escape(_MARK) + '<(?:tool_call>|invoke name=")'
    before: ClassVar[tuple[str, ...]] = ()
    section: ClassVar[re.Pattern[str]] = re.compile(re.escape(_MARK + "<tool_call>"))
    section_close: ClassVar[tuple[str, ...]] = (_MARK + "</tool_call>",)
    inner: ClassVar[str] = _MARK + '<invoke name="'
    close: ClassVar[str] = _MARK + "</invoke>"

    def read(self, position: int) -> tuple[ToolCall, list[str], int] | int:
        head = _HEAD.match(self.text, position)
        if head is None:
            return position
        found = self._elements(head.end(), 0)
        if isinstance(found, int):
            return found
        elements, end = found
        if not elements and skip_blank(self.text, end) == len(self.text):
            return end  # a name alone is no call before it is closed
        call, warnings = call_of_values("", head["name"], dict(elements), self.context.schemas)
        return call, warnings, end

    def _elements(self, position: int, depth: int) -> tuple[list[tuple[str, Raw]], int] | int:
        """The elements from here on, in order, and where they end; or how far one without an end was read."""
        elements: list[tuple[str, Raw]] = []
        while element := _OPEN.match(self.text, position):
            found = self._value(element.end(), depth) if depth < _MAX_DEPTH else position
            if isinstance(found, int):
                return found
            value, position = found
            closing = f"{_MARK}</{element['key']}>"
            if not self.text.startswith(closing, position):
                return position
            elements.append((element["key"], value))
            position += len(closing)
        blank = _BLANK.match(self.text, position)  # a model may put line ends between elements
        return elements, blank.end() if blank else position

    def _value(self, position: int, depth: int) -> tuple[Raw, int] | int:
        """Text up to the next mark; or, where elements follow at once, a list of items or an object."""
        if _OPEN.match(self.text, position) is None:
            end = self.text.find(_MARK, position)
            return (self.text[position:end], end) if end >= 0 else len(self.text)
        found = self._elements(position, depth + 1)
        if isinstance(found, int):
            return found
        elements, end = found
        if all(key == "item" for key, _ in elements):
            return [value for _, value in elements], end
        return dict(elements), end


MINIMAX_M3 = ToolGrammar("minimax_m3", reader(_Finder), control_literals_needed=(_MARK,))
