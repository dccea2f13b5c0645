"""What of a conversation was read before: agents send all of it again each turn, and only its end is new."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dressage_tito import Message

_KEPT = 4
_LAST = 3
"""So many items at its end an agent may write anew when it goes on: a text as a list of one, a cut turn."""


Recall = Callable[[str], Message | None]


def _nothing(_: str) -> Message | None:
    """A memo of its own recalls nothing."""
    return None


@dataclass(frozen=True, slots=True)
class Mark:
    """Up to here ``items`` of a conversation made ``raw`` messages and ``notes``, whatever comes next."""

    items: int
    raw: int
    notes: int


@dataclass(slots=True)
class Reading:
    """A conversation as it came and as it was read."""

    items: Sequence[Any] = ()
    raw: list[Mapping[str, Any]] = field(default_factory=list)
    """Messages of the chat shape, without what leads the conversation (system prompt, instructions)."""
    handles: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    def mark(self, items: int) -> None:
        """What follows item ``items`` changes nothing of what was read so far."""
        self.marks.append(Mark(items, len(self.raw), len(self.notes)))

    def start(self, items: Sequence[Any]) -> tuple[Reading, int]:
        """A new reading of ``items`` with what they share with this one, and how many of them that covers."""
        same = 0
        for one, two in zip(self.items, items, strict=False):
            if one != two:
                break
            same += 1
        count = next((n for n in range(len(self.marks), 0, -1) if self.marks[n - 1].items <= same), 0)
        if not count:
            return Reading(items), 0
        at = self.marks[count - 1]
        handles = {index: handle for index, handle in self.handles.items() if index < at.raw}
        # What is shared is kept once: the copy that came with this request can go.
        kept = [*self.items[: at.items], *items[at.items :]]
        read = Reading(kept, self.raw[: at.raw], handles, self.notes[: at.notes], self.marks[:count])
        return read, at.items


class Memo:
    """The last few readings of one session in one dialect. What it is given must not be changed later."""

    def __init__(self) -> None:
        self._kept: list[Reading] = []
        self.recall: Recall = _nothing
        """The message of a turn of the session, by its handle: requests may name it in its place."""

    @contextmanager
    def recalling(self, recall: Recall) -> Iterator[Memo]:
        """With what one request may name: what knows the session must not be kept by it."""
        self.recall = recall
        try:
            yield self
        finally:
            self.recall = _nothing

    def start(self, items: Sequence[Any]) -> tuple[Reading, int]:
        """The reading to go on with, and the first of ``items`` that is still to be read."""
        best, best_count, best_old = Reading(items), 0, None
        for old in self._kept:
            reading, count = old.start(items)
            if count > best_count:
                best, best_count, best_old = reading, count, old
        if best_old is not None and len(best_old.items) - best_count <= _LAST:
            self._kept = [old for old in self._kept if old is not best_old]  # the new one goes on from it
        return best, best_count

    def keep(self, reading: Reading) -> None:
        """Keep a whole reading; the oldest of a few is dropped."""
        self._kept.append(reading)
        del self._kept[:-_KEPT]

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()
