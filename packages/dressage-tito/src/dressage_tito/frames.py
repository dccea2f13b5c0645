"""What a template prints around the contents of plain messages, kept to be known again in later renders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dressage_tito.messages import Message
from dressage_tito.spans import Span

_KEPT = 64
_KEPT_CHARS = 4096


@dataclass(frozen=True, slots=True)
class Frames:
    """Frames of proven renders by the roles of their messages.

    A render that is such a frame with the contents filled in, letter by letter, has its contents in the
    frame's gaps: it needs no proof of its own. May be shared by threads.
    """

    _known: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)

    def keep(
        self, messages: Sequence[Message], contents: Sequence[str], text: str, spans: Sequence[Span]
    ) -> None:
        """Note the frame of a proven render of plain messages whose contents stand whole and in order."""
        if not _plain(messages) or [text[start:end] for start, end in spans] != list(contents):
            return
        starts, ends = [start for start, _ in spans], [end for _, end in spans]
        parts = tuple(text[a:b] for a, b in zip([0, *ends], [*starts, len(text)], strict=True))
        if sum(map(len, parts)) > _KEPT_CHARS:
            return
        if len(self._known) >= _KEPT:
            self._known.clear()
        self._known[_roles(messages)] = parts

    def spans(
        self, messages: Sequence[Message], contents: Sequence[str], text: str
    ) -> tuple[Span, ...] | None:
        """Where the contents stand in the template's render; None where no frame that is known fits."""
        parts = self._known.get(_roles(messages))
        if parts is None or not _plain(messages):
            return None
        found: list[Span] = []
        end = 0
        for part, content in zip(parts, contents, strict=False):
            start = end + len(part)
            if not text.startswith(part, end) or not text.startswith(content, start):
                return None
            end = start + len(content)
            found.append((start, end))
        return tuple(found) if text[end:] == parts[-1] else None


def _roles(messages: Sequence[Message]) -> tuple[str, ...]:
    return tuple(message.role for message in messages)


def _plain(messages: Sequence[Message]) -> bool:
    """Whether their contents are all that a template prints of them, and none is blank."""
    return all(
        message.content.strip() and not message.tool_calls and not message.reasoning for message in messages
    )
