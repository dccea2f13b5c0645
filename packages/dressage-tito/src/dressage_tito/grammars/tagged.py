"""Parameters that stand between tags as raw text, so that a value may spell the tags themselves."""

from __future__ import annotations

import re
from bisect import bisect_left


class TaggedParameters:
    """Reads ``<open key>value<close>`` again and again, up to a tail.

    A value ends at the first closing tag that is followed by the next parameter or by the tail (blanks may
    stand between): a closing tag in mid-value is a part of it. Reading one text is linear in its length.
    """

    def __init__(self, text: str, opening: str, closing: str, tail: str) -> None:
        """Patterns: ``opening`` has the group ``key``; its own blanks are not skipped."""
        self._text = text
        self._opening = re.compile(opening)
        self._closing = re.compile(f"{closing}(?=\\s*+(?:{opening}|{tail}))")
        self._blank = re.compile(r"\s*")
        self._ends: list[tuple[int, int]] | None = None
        self._doomed: set[int] = set()

    def read(self, position: int) -> tuple[list[tuple[re.Match[str], str]], int]:
        """The parameters from here on (the opening's match and the raw value) and where they end."""
        found: list[tuple[re.Match[str], str]] = []
        while True:
            position = self._skip(position)
            opening = self._opening.match(self._text, position)
            if opening is None or position in self._doomed:
                return found, position
            end = self._end(opening.end())
            if end is None:
                self._doomed.add(position)
                return found, position
            found.append((opening, self._text[opening.end() : end[0]]))
            position = end[1]

    def doom(self, found: list[tuple[re.Match[str], str]]) -> None:
        """Remember parameters that led nowhere, so that they are not read again."""
        self._doomed.update(opening.start() for opening, _ in found)

    def _skip(self, position: int) -> int:
        blank = self._blank.match(self._text, position)
        return blank.end() if blank else position

    def _end(self, position: int) -> tuple[int, int] | None:
        if self._ends is None:
            self._ends = [match.span() for match in self._closing.finditer(self._text)]
        index = bisect_left(self._ends, (position, 0))
        return self._ends[index] if index < len(self._ends) else None
