"""The walk through a turn's text from call to call, shared by the grammars that mark calls in content."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from dressage_tito.grammars.base import Piece, PieceKind, Reading, TurnContext
from dressage_tito.grammars.reasoning import read_reasoning
from dressage_tito.messages import ToolCall


@dataclass(frozen=True, slots=True)
class Found:
    """One call, or several that stand in one list, and where they end."""

    calls: tuple[ToolCall, ...]
    end: int
    closed: bool = True
    """A closing mark was read. A call without one counts only where the engine saw the turn's own end."""
    warnings: tuple[str, ...] = ()


class CallFinder:
    """How a family marks and writes a call; one finder is made for each turn."""

    opening: ClassVar[str]
    """A pattern of what begins a call."""
    close: ClassVar[str] = ""
    """The mark that ends a call: a broken one stays content up to it."""
    before: ClassVar[tuple[str, ...]] = ("\n",)
    """Line ends that the grammar puts between content and a call, the longest first."""
    lead: ClassVar[str] = ""
    """A line end that the grammar puts before the content."""

    def __init__(self, text: str, context: TurnContext) -> None:
        self.text = text
        self.context = context

    def find(self, start: int, after: int) -> Found | int:
        """The whole call whose opening is ``text[start:after]``.

        Where there is none: the position up to which the text was read as a part of this call.
        """
        raise NotImplementedError


def reader(finder: type[CallFinder]) -> Callable[[str, TurnContext], Reading]:
    """A grammar's ``read``."""

    def read(text: str, context: TurnContext) -> Reading:
        warnings: list[str] = []
        pieces, position = read_reasoning(text, context, warnings)
        if position == len(text):
            return Reading(tuple(pieces), tuple(warnings))
        scan = _Scan(text, finder, context, warnings)
        scan.run(position)
        return Reading((*pieces, *scan.pieces), tuple(warnings))

    return read


class _Scan:
    def __init__(
        self, text: str, finder: type[CallFinder], context: TurnContext, warnings: list[str]
    ) -> None:
        self.pieces: list[Piece] = []
        self._text = text
        self._finder = finder(text, context)
        self._context = context
        self._warnings = warnings
        self._called = False
        thinking = re.escape(context.reasoning_tags[0]) if context.reasoning_tags else "(?!)"
        self._next = re.compile(f"(?P<thinking>{thinking})|{finder.opening}")

    def run(self, position: int) -> None:
        """Cut everything from ``position`` on into pieces."""
        if self._finder.lead and self._text.startswith(self._finder.lead, position):
            self._piece("frame", position, position + len(self._finder.lead))
            position += len(self._finder.lead)
        if not self._context.tools:
            if re.compile(self._finder.opening).search(self._text, position):
                self._warnings.append(
                    "tool_call_without_tools: the turn writes a call, but no tools were offered"
                )
            self._piece("content", position, len(self._text))
            return
        kept = position
        while match := self._next.search(self._text, position):
            if match["thinking"] is not None:
                position = self._skip_thinking(match.end())
                continue
            found = self._finder.find(match.start(), match.end())
            if not isinstance(found, Found) or self._is_cut(found):
                position = self._broken(max(match.end(), found.end if isinstance(found, Found) else found))
                continue
            self._content(kept, match.start(), before_call=True)
            self.pieces.append(Piece("call", match.start(), found.end, found.calls))
            self._warnings += found.warnings
            self._called = True
            position = kept = found.end
        self._content(kept, len(self._text), before_call=False)

    def _piece(self, kind: PieceKind, start: int, end: int) -> None:
        if start < end:
            self.pieces.append(Piece(kind, start, end))

    def _content(self, start: int, end: int, *, before_call: bool) -> None:
        """Content between calls, less the line ends that the grammar itself puts around a call."""
        text = self._text[start:end]
        if self._called and not text.strip():
            self._piece("frame", start, end)
            return
        first, last = start, end
        if self._called and text.startswith("\n"):
            first += 1
        if before_call:
            last -= next((len(mark) for mark in self._finder.before if text.endswith(mark)), 0)
        last = max(first, last)
        self._piece("frame", start, first)
        self._piece("content", first, last)
        self._piece("frame", last, end)

    def _skip_thinking(self, position: int) -> int:
        """Thinking that begins in mid-content stays content, and a call drafted in it is none."""
        assert self._context.reasoning_tags is not None
        closing = self._context.reasoning_tags[1]
        self._warnings.append("reasoning_tag_in_content: a later reasoning block was left in the content")
        end = self._text.find(closing, position)
        return len(self._text) if end < 0 else end + len(closing)

    def _is_cut(self, found: Found) -> bool:
        return (
            not found.closed and self._context.finish_reason != "stop" and not self._text[found.end :].strip()
        )

    def _broken(self, position: int) -> int:
        """Where to go on after a call that does not parse: it stays content up to its closing mark."""
        close = self._finder.close
        end = self._text.find(close, position) if close else -1
        if end < 0:
            self._warnings.append("incomplete_tool_call: a call without its end was left in the content")
            if self._context.finish_reason == "stop":
                self._warnings.append("unclosed_tool_call: the turn ended inside a call")
            return len(self._text)
        self._warnings.append("malformed_tool_call: a call that does not parse was left in the content")
        return end + len(close)
