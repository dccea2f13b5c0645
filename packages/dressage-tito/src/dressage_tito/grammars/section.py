"""Calls that stand in a section: ``<section> <call>…</call> <call>…</call> </section>``."""

from __future__ import annotations

import re
from typing import ClassVar

from dressage_tito.grammars.base import TurnContext
from dressage_tito.grammars.scan import Broken, CallFinder, Found
from dressage_tito.jsonspan import skip_blank
from dressage_tito.messages import ToolCall


class SectionFinder(CallFinder):
    """Reads a section call by call, so that a whole call counts although a later one was cut.

    ``opening`` must match what begins a section and what begins a call.
    """

    section: ClassVar[re.Pattern[str]]
    """What begins a section."""
    inner: ClassVar[str]
    """What begins a call in it."""
    close: ClassVar[str]
    """What ends a call."""
    section_close: ClassVar[tuple[str, ...]]
    """What ends a section."""
    raw: ClassVar[bool] = False
    """Values stand there as raw text, so that one may spell a whole call."""

    def __init__(self, text: str, context: TurnContext) -> None:
        super().__init__(text, context)
        self._inside = False
        self._read_to = 0

    def read(self, position: int) -> tuple[ToolCall, list[str], int] | int:
        """The call whose inner opening ends at ``position``, warnings, and where its closing mark begins.

        Where it is none: how far it was read.
        """
        raise NotImplementedError

    def find(self, start: int, after: int) -> Found | Broken:
        """See CallFinder: a section's opening together with its first call, or a later call."""
        section = self.section.match(self.text, start)
        if section:
            body = skip_blank(self.text, section.end())
            if not self.text.startswith(self.inner, body):
                self._inside = False
                return Broken(section.end(), self.section_close[0], begun=False)
            after = body + len(self.inner)
        elif not self._inside or self._closed_before(start):
            self._inside = False
            return Broken(after)
        self._inside = True
        self._read_to = start
        found = self.read(after)
        if isinstance(found, int):
            self._read_to = found
            return Broken(found, self.close)
        call, warnings, end = found
        whole = self.closed((call,), end, self.close, warnings)
        if isinstance(whole, Broken):
            self._read_to = whole.end
            return whole
        closed = whole.closed and (not self.raw or self.text.find(self.inner, after, end) < 0)
        self._read_to = end = whole.end
        tail = skip_blank(self.text, end)
        for mark in self.section_close:
            if self.text.startswith(mark, tail):
                self._inside = False
                end = tail + len(mark)
        return Found((call,), end, closed, whole.warnings)

    def _closed_before(self, position: int) -> bool:
        return any(self.text.find(mark, self._read_to, position) >= 0 for mark in self.section_close)
