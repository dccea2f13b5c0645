"""Parameters that stand between tags as raw text, so that a value may spell the tags themselves."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

_UNCLOSED = (
    "unclosed_parameter: a parameter without its closing tag ends where the next one, or the call, does"
)


@dataclass(frozen=True, slots=True)
class Parameters:
    """Each parameter's opening (group ``key``) and raw value, where they end, and warnings."""

    found: tuple[tuple[re.Match[str], str], ...]
    end: int
    warnings: tuple[str, ...] = ()


_KEY = re.compile(r"\(\?P<key>\[\^(?P<ends>.*?)\]\+\)")


def _with_names(opening: str, schemas: Mapping[str, Any]) -> str:
    """The pattern, for names too that hold what ends a name elsewhere."""
    key = _KEY.search(opening)
    assert key is not None
    ends = re.compile(f"[{key['ends']}]")
    # One look at all of them: a turn is read once, and few names are odd.
    listed = (schema.get("properties") for schema in schemas.values() if isinstance(schema, dict))
    named = "\0".join(["\0".join(names) for names in listed if isinstance(names, dict)])
    if ends.search(named) is None:
        return opening
    odd = {name for name in named.split("\0") if ends.search(name)}
    either = "|".join([*map(re.escape, sorted(odd, key=len, reverse=True)), f"[^{key['ends']}]+"])
    return f"{opening[: key.start()]}(?P<key>{either}){opening[key.end() :]}"


class TaggedParameters:
    """Reads ``<open key>value<close>`` again and again, up to a tail or the end of the text.

    A value ends at the first closing tag that is followed by the next parameter or by the tail (blanks may
    stand between): a closing tag in mid-value is a part of it. Reading on and on is linear in the text.
    """

    def __init__(
        self, text: str, schemas: Mapping[str, Any], opening: str, closing: str, tail: str, head: str
    ) -> None:
        """Patterns: ``opening`` has the group ``key``; ``head`` is what the next call begins with.

        ``schemas`` are the offered tools': a parameter that they name is known, whatever its name holds.
        """
        opening = _with_names(opening, schemas)
        self._text = text
        self._opening = re.compile(opening)
        self._closing = re.compile(f"{closing}(?=\\s*+(?:{opening}|{tail}|\\Z))")
        self._any_closing = re.compile(closing)
        self._own_line = re.compile(f"\\n[ \\t]*+(?={opening})")
        self._tail = re.compile(tail)
        self._next_call = re.compile(f"(?:{tail})\\s*+{head}")
        self._blank = re.compile(r"\s*")
        self._ends: list[tuple[int, int]] | None = None
        self._closings: list[int] | None = None

    def read(
        self, position: int, names: Set[str] = frozenset(), *, to_tail: bool = False
    ) -> Parameters | int:
        """The parameters from here on. Where one has no end: how far it was read.

        A value that holds this call's tail and the next one's head has lost its closing tag, and must not
        swallow the next call; one that holds the opening of one of the tool's other parameters (``names``) on
        a line of its own, and no closing tag, ends there. With ``to_tail`` a last value without its closing
        tag ends at the call's tail.
        """
        found: list[tuple[re.Match[str], str]] = []
        warnings: list[str] = []
        given: set[str] = set()
        while True:
            position = self._skip(position)
            opening = self._opening.match(self._text, position)
            if opening is None:
                return Parameters(tuple(found), position, tuple(dict.fromkeys(warnings)))
            given.add(opening["key"].strip())
            start = opening.end()
            end = self._end(start)
            lost = self._lost(start, end[0] if end else len(self._text), names - given)
            end = (lost, lost) if lost is not None else end
            stop = end[0] if end else len(self._text)
            swallowed = self._next_call.search(self._text, start, stop)
            if swallowed or end is None:
                tail = self._tail.search(self._text, start) if to_tail else None
                if tail is None:
                    return swallowed.start() if swallowed else len(self._text)
                lost = stop = tail.start()
                end = (lost, lost)
            if lost is not None:
                warnings.append(_UNCLOSED)
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

    def _lost(self, position: int, end: int, names: Set[str]) -> int | None:
        """Where a parameter of one of ``names`` begins on a line of its own, if text stands before it in the
        value, which ends at ``end``, and no closing tag: a value that spells a parameter spells its end."""
        if not names:
            return None
        if self._closings is None:
            self._closings = [match.start() for match in self._any_closing.finditer(self._text)]
        index = bisect_left(self._closings, position)
        if index < len(self._closings) and self._closings[index] < end:
            return None
        for line in self._own_line.finditer(self._text, position, end):
            opening = self._opening.match(self._text, line.end())
            if opening is not None and opening["key"].strip() in names:
                return line.start() if self._skip(position) < line.start() else None
        return None
