"""Parameters that stand between tags as raw text, so that a value may spell the tags themselves."""

from __future__ import annotations

import re
from bisect import bisect_left


class TaggedParameters:
    """Reads ``<open key>value<close>`` again and again, up to a tail.

    A value ends at the first closing tag that is followed by the next parameter or by the tail (blanks may
    stand between): a closing tag in mid-value is a part of it. Reading on and on is linear in the text.
    """

    def __init__(self, text: str, opening: str, closing: str, tail: str, head: str) -> None:
        """Patterns: ``opening`` has the group ``key``; ``head`` is what the next call begins with."""
        self._text = text
        self._opening = re.compile(opening)
        self._closing = re.compile(f"{closing}(?=\\s*+(?:{opening}|{tail}))")
        self._next_call = re.compile(f"{tail}\\s*+{head}")
        self._blank = re.compile(r"\s*")
        self._ends: list[tuple[int, int]] | None = None

    def read(self, position: int) -> tuple[list[tuple[re.Match[str], str]], int] | int:
        """The parameters from here on (the opening's match and the raw value) and where they end.

        Where one has no end: how far it was read. A value that holds this call's tail and the next one's head
        has lost its closing tag, and must not swallow the next call.
        """
        found: list[tuple[re.Match[str], str]] = []
        while True:
            position = self._skip(position)
            opening = self._opening.match(self._text, position)
            if opening is None:
                return found, position
            end = self._end(opening.end())
            start, stop = opening.end(), end[0] if end else len(self._text)
            if swallowed := self._next_call.search(self._text, start, stop):
                return swallowed.start()
            if end is None:
                return len(self._text)
            found.append((opening, self._text[start:stop]))
            position = end[1]

    def _skip(self, position: int) -> int:
        blank = self._blank.match(self._text, position)
        return blank.end() if blank else position

    def _end(self, position: int) -> tuple[int, int] | None:
        if self._ends is None:
            self._ends = [match.span() for match in self._closing.finditer(self._text)]
        index = bisect_left(self._ends, (position, 0))
        return self._ends[index] if index < len(self._ends) else None
