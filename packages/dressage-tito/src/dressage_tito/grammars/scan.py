"""The walk through a turn's text from call to call, shared by the grammars that mark calls in content."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from dressage_tito.grammars.base import Piece, PieceKind, Reading, TurnContext
from dressage_tito.grammars.reasoning import read_reasoning
from dressage_tito.jsonspan import skip_blank
from dressage_tito.messages import ToolCall

UNCLOSED = "unclosed_tool_call: the turn ended before the mark that closes its call"


@dataclass(frozen=True, slots=True)
class Found:
    """One call, or several that stand in one list, and where they end."""

    calls: tuple[ToolCall, ...]
    end: int
    closed: bool = True
    """A closing mark was read. A call without one counts only where the engine saw the turn's own end."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Broken:
    """No whole call. The text stays content up to the first ``close`` after ``end``, which is as far as it
    was read as a part of this call; with an empty ``close`` it is a mark out of its place."""

    end: int
    close: str = ""
    begun: bool = True
    """False where not even a call's head follows the opening: what comes next is read on its own."""


class CallFinder:
    """How a family marks and writes a call; one finder is made for each turn."""

    opening: ClassVar[str]
    """A pattern of what begins a call."""
    before: ClassVar[tuple[str, ...]] = ("\n",)
    """Line ends that the grammar puts between content and a call, the longest first."""
    lead: ClassVar[tuple[str, ...]] = ()
    """What the grammar puts before the content."""
    trail: ClassVar[tuple[str, ...]] = ()
    """What the grammar puts after the content."""

    def __init__(self, text: str, context: TurnContext) -> None:
        self.text = text
        self.context = context

    def find(self, start: int, after: int) -> Found | Broken:
        """The whole call whose opening is ``text[start:after]``."""
        raise NotImplementedError

    def closed(
        self, calls: tuple[ToolCall, ...], end: int, close: str, warnings: list[str]
    ) -> Found | Broken:
        """Whole calls that ``close`` must follow at ``end``; or, with a warning, the end of the turn."""
        end = skip_blank(self.text, end)
        if self.text.startswith(close, end):
            return Found(calls, end + len(close), warnings=tuple(warnings))
        if end == len(self.text):
            return Found(calls, end, closed=False, warnings=(*warnings, UNCLOSED))
        return Broken(end, close)


def reader(finder: type[CallFinder]) -> Callable[[str, TurnContext], Reading]:
    """A grammar's ``read``."""

    def read(text: str, context: TurnContext) -> Reading:
        warnings: list[str] = []
        pieces, position = read_reasoning(text, context, warnings)
        if position == len(text):
            return Reading(tuple(pieces), tuple(warnings))
        scan = _Scan(text, finder, context, warnings)
        scan.run(position)
        return Reading((*pieces, *scan.pieces), tuple(dict.fromkeys(warnings)))

    return read


_BLANK = re.compile(r"\s*+")
_MALFORMED = "malformed_tool_call: a call that does not parse was left in the content"


@functools.lru_cache(maxsize=256)
def _next_mark(opening: str, thinking: str | None) -> re.Pattern[str]:
    """What begins a call, or thinking in mid-content."""
    return re.compile(f"(?P<thinking>{'(?!)' if thinking is None else re.escape(thinking)})|{opening}")


class _Scan:
    def __init__(
        self, text: str, finder: type[CallFinder], context: TurnContext, warnings: list[str]
    ) -> None:
        self.pieces: list[Piece] = []
        self._text = text
        self._end = len(text)
        self._finder = finder(text, context)
        self._context = context
        self._warnings = warnings
        self._called = False
        self._next = _next_mark(finder.opening, context.reasoning_tags[0] if context.reasoning_tags else None)

    def run(self, position: int) -> None:
        """Cut everything from ``position`` on into pieces."""
        position = self._lead(position)
        trail = next((mark for mark in self._finder.trail if self._text.endswith(mark)), "")
        self._end = max(position, self._end - len(trail))
        if self._context.tools:
            self._calls(position)
        else:
            if re.compile(self._finder.opening).search(self._text, position):
                self._warnings.append(
                    "tool_call_without_tools: the turn writes a call, but no tools were offered"
                )
            self._piece("content", position, self._end)
        self._piece("frame", self._end, len(self._text))

    def _lead(self, position: int) -> int:
        for mark in self._finder.lead:
            if self._text.startswith(mark, position):
                self._piece("frame", position, position + len(mark))
                return position + len(mark)
        return position

    def _calls(self, position: int) -> None:
        kept = position
        while match := self._next.search(self._text, position, self._end):
            if match["thinking"] is not None:
                position = self._skip_thinking(match.end())
                continue
            found = self._finder.find(match.start(), match.end())
            if isinstance(found, Broken) or found.end > self._end or self._is_cut(found):
                position = max(match.end(), self._broken(found))
                continue
            self._content(kept, match.start(), before_call=True)
            self.pieces.append(Piece("call", match.start(), found.end, found.calls))
            self._warnings += found.warnings
            self._called = True
            position = kept = found.end
        self._content(kept, self._end, before_call=False)

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
        return self._end if end < 0 else end + len(closing)

    def _is_cut(self, found: Found) -> bool:
        return (
            not found.closed
            and self._context.finish_reason != "stop"
            and _BLANK.fullmatch(self._text, found.end, self._end) is not None
        )

    def _broken(self, found: Found | Broken) -> int:
        """Where to go on after a call that does not parse: it stays content up to its closing mark."""
        if isinstance(found, Broken):
            if not found.close:
                self._warnings.append(
                    "stray_call_mark: a part of a call outside of one was left in the content"
                )
                return found.end
            end = self._text.find(found.close, found.end) if found.begun else found.end
            if end >= 0 and (found.begun or not _BLANK.fullmatch(self._text, end)):
                self._warnings.append(_MALFORMED)
                return end + len(found.close) if found.begun else end
        self._warnings.append("incomplete_tool_call: a call without its end was left in the content")
        if self._context.finish_reason == "stop":
            self._warnings.append("unclosed_tool_call: the turn ended inside a call")
        return self._end
