"""What a template prints for plain messages after a turn, kept to be printed again without it.

A template goes its way by what it is told and by what it asks of the texts. Where a traced render shows all
that it asks (``jinja_trace``), other texts that give the same answers are printed in just the same way: the
render's text with them in place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dressage_tito.marking import Marker, is_text
from dressage_tito.messages import Message
from dressage_tito.spans import Span
from dressage_tito.template import ChatTemplate, Json

if TYPE_CHECKING:
    from dressage_tito.jinja_trace import Note, Part

Printed = tuple[str, tuple[Span, ...]]
"""A tail, and where contents stand in it."""

_KEPT = 64
_KEPT_CHARS = 4096
"""Very many messages at once, and long names and arguments, hardly come again: nothing is kept of them."""
_TRIES = 3
"""So many renders of one form are traced in vain: after that only the fourth, the eighth and so on. Its texts
alone may have been what could not be followed."""


@dataclass(frozen=True, slots=True)
class Known:
    """A tail: its parts (texts by their numbers) and what must be true of the texts."""

    parts: tuple[Part, ...]
    notes: tuple[Note, ...]

    def numbers(self) -> Iterator[int]:
        """Of the texts that it depends on."""
        for parts in (self.parts, *(note.parts for note in self.notes)):
            yield from (part for part in parts if not isinstance(part, str))

    def printed(self, texts: Sequence[str]) -> Printed | None:
        """The tail with other texts, and where their first half, the contents, stand; None where the template
        may print it in another way."""
        if not all(note.holds(texts) for note in self.notes):
            return None
        contents = len(texts) // 2
        pieces: list[str] = []
        spans: list[Span] = []
        size = 0
        for part in self.parts:
            piece = part if isinstance(part, str) else texts[part]
            pieces.append(piece)
            if not isinstance(part, str) and part < contents:
                spans.append((size, size + len(piece)))
            size += len(piece)
        return "".join(pieces), tuple(spans)


@dataclass(frozen=True, slots=True)
class Asked:
    """Messages to append, as they are looked up."""

    form: Hashable
    """All that the template is told but the texts."""
    texts: tuple[str, ...]
    """Contents, then the ids of the calls that are answered."""


@dataclass(frozen=True, slots=True)
class Tails:
    """Tails of one template. May be shared by threads."""

    template: ChatTemplate
    _known: dict[Hashable, Known] = field(default_factory=dict)
    _tries: dict[Hashable, int] = field(default_factory=dict)

    def asked(self, marker: Marker, messages: Sequence[Message], kwargs: Json) -> Asked | None:
        """The messages as they are looked up; None where they are not plain: contents are all that a template
        prints of plain messages, and none is blank."""
        forms = []
        texts = []
        ids = []
        for message in messages:
            if message.tool_calls or message.reasoning or not message.content.strip():
                return None
            forms.append((message.role, message.name, bool(message.tool_call_id)))
            texts.append(marker.escape(message.content))
            ids.append(marker.escape(message.tool_call_id))
        texts += ids
        if not all(map(is_text, texts)):
            return None
        settings = repr(sorted(kwargs.items())) if kwargs else ""
        return Asked((marker.marks, tuple(forms), settings), tuple(texts))

    def printed(self, asked: Asked) -> Printed | None:
        """The tail for the messages and where their contents stand, as the template would print it; None
        where that is not known."""
        known = self._known.get(asked.form)
        return None if known is None else known.printed(asked.texts)

    def learn(
        self,
        asked: Asked,
        said: Callable[[Sequence[Any]], list[Json]],
        kwargs: Json,
        whole: str,
        closing: str,
        tail: Printed,
    ) -> None:
        """Keep what a proven render shows. ``said`` makes the template's messages from texts in place of
        those of ``asked``; ``whole`` is what they were printed as, and ``tail`` is its end, after the last
        ``closing``."""
        if not _is_json(kwargs) or len(repr(asked.form)) > _KEPT_CHARS:
            return
        if len(self._tries) >= _KEPT:
            self._tries.clear()
            self._known.clear()
        asks = self._tries.get(asked.form, 0)
        self._tries[asked.form] = asks + 1
        if asks >= _TRIES and asks & (asks - 1):
            return
        from dressage_tito.jinja_trace import Trace, filled

        count = len(asked.texts)
        trace = Trace(asked.texts)
        parts = self.template.traced(trace, said([trace.rope(number) for number in range(count)]), kwargs)
        if parts is None or filled(parts, trace.texts) != whole:
            return
        known = Known(_after(parts, closing), tuple(trace.notes))
        contents = [part for part in known.parts if not isinstance(part, str) and part < count // 2]
        each_once = contents == list(range(count // 2))
        if each_once and max(known.numbers()) < count and known.printed(asked.texts) == tail:
            self._known[asked.form] = known


def _is_json(kwargs: Json) -> bool:
    """Whether arguments are all that they look like: a function or an object of its own kind may give a
    template another answer each time."""
    try:
        return bool(json.dumps(kwargs))
    except (TypeError, ValueError, RecursionError):
        return False


def _after(parts: Sequence[Part], closing: str) -> tuple[Part, ...]:
    """What follows the last ``closing`` in a known part; all where there is none."""
    for place in range(len(parts) - 1, -1, -1):
        part = parts[place]
        if isinstance(part, str) and closing in part:
            return part.rpartition(closing)[2], *parts[place + 1 :]
    return tuple(parts)
