"""Parameters that stand between tags as raw text, so that a value may spell the tags themselves."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cached_property
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


class _Places:
    """Where a pattern's matches lie in a text: all are looked for at once, when one is first asked for.

    To look anew from each parameter on would cost the square of a text in which none is.
    """

    def __init__(self, text: str, pattern: str) -> None:
        self._text = text
        self._pattern = re.compile(pattern)

    @cached_property
    def _spans(self) -> list[tuple[int, int]]:
        return [match.span() for match in self._pattern.finditer(self._text)]

    def after(self, position: int) -> tuple[int, int] | None:
        """The first one that begins at ``position`` or later."""
        index = bisect_left(self._spans, (position, 0))
        return self._spans[index] if index < len(self._spans) else None


class TaggedParameters:
    """Reads ``<open key>value<close>`` again and again, up to a tail or the end of the text.

    A value ends at the first closing tag that is followed by the next parameter or by the tail (blanks may
    stand between): a closing tag in mid-value is a part of it. Reading on and on is linear in the text.
    """

    def __init__(
        self,
        text: str,
        schemas: Mapping[str, Any],
        opening: str,
        closing: str,
        tail: str,
        head: str,
        call: str,
    ) -> None:
        """Patterns: ``opening`` has the group ``key``; ``head`` is what the next call begins with, ``call``
        all that stands before its first parameter.

        ``schemas`` are the offered tools': a parameter that they name is known, whatever its name holds.
        """
        opening = _with_names(opening, schemas)
        self._text = text
        self._opening = re.compile(opening)
        self._ends = _Places(text, f"{closing}(?=\\s*+(?:{opening}|{tail}|\\Z))")
        self._closings = _Places(text, closing)
        self._next_calls = _Places(text, f"(?:{tail})\\s*+{head}")
        self._tails = _Places(text, tail)
        self._calls = _Places(text, f"{call}\\s*+{opening}")
        self._own_line = re.compile(f"\\n[ \\t]*+(?={opening})")
        self._tail = re.compile(tail)
        self._blank = re.compile(r"\s*")

    def read(
        self, position: int, names: Set[str] = frozenset(), *, to_tail: bool = False
    ) -> Parameters | int:
        """The parameters from here on. Where one has no end, or the text ends before the first one: how far
        it was read.

        A value that holds this call's tail and the next one's head has lost its closing tag, and must not
        swallow the next call, nor what is said before it; one that holds the opening of one of the tool's
        other parameters (``names``) on a line of its own, and no closing tag, ends there. With ``to_tail`` a
        last value without its closing tag ends at the call's tail.
        """
        found: list[tuple[re.Match[str], str]] = []
        warnings: list[str] = []
        given: set[str] = set()
        while True:
            position = self._skip(position)
            opening = self._opening.match(self._text, position)
            if opening is None:
                if not found and position == len(self._text):
                    return position  # a name alone is no call before it is closed
                return Parameters(tuple(found), position, tuple(dict.fromkeys(warnings)))
            given.add(opening["key"].strip())
            start = opening.end()
            end = self._ends.after(start)
            lost = self._lost(start, end[0] if end else len(self._text), names - given)
            end = (lost, lost) if lost is not None else end
            stop = end[0] if end else len(self._text)
            swallowed = self._swallowed(start, stop)
            if swallowed is not None or end is None:
                tail = self._tail.search(self._text, start) if to_tail else None
                if tail is None:
                    return len(self._text) if swallowed is None else swallowed
                lost = stop = tail.start()
                end = (lost, lost)
            if lost is not None:
                warnings.append(_UNCLOSED)
            found.append((opening, self._text[start:stop]))
            position = end[1]

    def _skip(self, position: int) -> int:
        blank = self._blank.match(self._text, position)
        return blank.end() if blank else position

    def _swallowed(self, position: int, end: int) -> int | None:
        """Where this call's tail stands in a value that reaches to ``end``, if the next call follows it: at
        once, or after other text where the next one is the first that begins there and has a parameter, and
        no closing tag stands before ``end``."""
        at_once = self._next_calls.after(position)
        if at_once and at_once[1] <= end:
            return at_once[0]
        closing, tail, call = (
            places.after(position) for places in (self._closings, self._tails, self._calls)
        )
        if tail is None or call is None or (closing is not None and closing[0] < end):
            return None
        return tail[0] if tail[1] <= call[0] < end else None

    def _lost(self, position: int, end: int, names: Set[str]) -> int | None:
        """Where a parameter of one of ``names`` begins on a line of its own, if text stands before it in the
        value, which ends at ``end``, and no closing tag: a value that spells a parameter spells its end."""
        if not names:
            return None
        closing = self._closings.after(position)
        if closing is not None and closing[0] < end:
            return None
        later = [(lines, bisect_left(lines, position)) for name in names if (lines := self._lines.get(name))]
        line = min((lines[index] for lines, index in later if index < len(lines)), default=end)
        return line if self._skip(position) < line < end else None

    @cached_property
    def _lines(self) -> dict[str, list[int]]:
        """Where parameters begin on lines of their own, by name."""
        lines: dict[str, list[int]] = {}
        for line in self._own_line.finditer(self._text):
            lines.setdefault(line["key"].strip(), []).append(line.start())
        return lines
