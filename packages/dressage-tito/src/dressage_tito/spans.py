"""Where contents stand in a text."""

from __future__ import annotations

from collections.abc import Sequence

Span = tuple[int, int]


def without_escapes(text: str, spans: Sequence[Span], escape: str) -> tuple[str, list[Span]]:
    """A text without the escapes in it, and its spans there."""
    moved: list[Span] = []
    position = gone = 0
    for start, end in spans:
        gone += text.count(escape, position, start)
        first = start - gone
        gone += text.count(escape, start, end)
        position = end
        if first < end - gone:
            moved.append((first, end - gone))
    return text.replace(escape, ""), moved
