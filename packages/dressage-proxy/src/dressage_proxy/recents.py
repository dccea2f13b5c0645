"""The messages of a request as its session reads them. Agents send everything again each turn: what the last
few requests said is not read twice."""

from __future__ import annotations

from collections.abc import Container, Mapping, MutableMapping, Sequence
from types import MappingProxyType
from typing import Any

from dressage_proxy.added import Behind, apart
from dressage_proxy.interleaved import spoken_in_a_row, turn_by_turn, whole_turns
from dressage_proxy.records import record
from dressage_proxy.volatile import pin_volatile

_KEPT = 4
_SYSTEM = ("system", "developer")


@record
class Read:
    """A request as it ``came`` and as it is read: ``raw`` with a message for each turn and volatile blocks
    pinned, ``handles`` by its indices, and the keys of its leading messages that are ``known``."""

    came: Sequence[Any]
    raw: list[Any]
    handles: Mapping[int, str]
    known: tuple[str, ...]
    in_order: bool
    """No call was moved to the turn that made it: each message is one of ``came``, or a part of one."""
    calls_at: int
    """Where in ``came`` the last message with calls is; -1 where none is."""


@record
class _Recent:
    """A request seen before, as :class:`Read` has it, with the keys of all its messages."""

    came: list[Any]
    raw: list[Any]
    handles: Mapping[int, str]
    keys: tuple[str, ...]
    in_order: bool
    calls_at: int

    def goes_on(
        self,
        calls: Mapping[str, int],
        came: Sequence[Any],
        handles: Mapping[int, str],
        added: Mapping[str, Behind],
        returned: Container[str],
    ) -> Read | None:
        """A request that says all of this one again and then more; None where it must be read anew."""
        size = len(self.came)
        if not self.in_order or len(came) < size or came[:size] != self.came:
            return None
        new = came[size:]
        if any(not isinstance(message, Mapping) or message.get("role") in _SYSTEM for message in new):
            return None
        # Whether calls are in order shows from one message with calls to the next.
        first = max(size - 1, 0) if self.calls_at < 0 else self.calls_at
        tail = came[first:]
        if turn_by_turn(calls, tail, {})[0] is not tail:
            return None
        if spoken_in_a_row(tail):
            near = {index - first: handle for index, handle in handles.items() if index >= first}
            if whole_turns(returned, tail, near)[0] is not tail:
                return None
        at = _last_calls(new)
        calls_at = self.calls_at if at < 0 else size + at
        whole = [*self.came, *new]
        said: Sequence[Any] = new
        if added or len(self.raw) != size:
            new_handles = {index - size: handle for index, handle in handles.items() if index >= size}
            said, moved = apart(added, new, new_handles)
            handles = {**self.handles, **{index + len(self.raw): handle for index, handle in moved.items()}}
        return Read(whole, [*self.raw, *said], handles, self.keys, in_order=True, calls_at=calls_at)


class Recents:
    """The last few requests of a session. What it is given must not be changed later."""

    def __init__(self) -> None:
        self._kept: list[_Recent] = []

    def read(
        self,
        calls: Mapping[str, int],
        pinned: MutableMapping[str, str],
        came: Sequence[Any],
        handles: Mapping[int, str],
        added: Mapping[str, Behind] = MappingProxyType({}),
        returned: Container[str] = (),
    ) -> Read:
        """A request's messages. ``calls``: wire id of a call -> its turn; ``pinned``: volatile block -> its
        first value, noted here; ``added``: text of a message -> the turn that it begins with, and more;
        ``returned`` has the keys of the messages that turns were returned as."""
        for recent in sorted(self._kept, key=lambda kept: -len(kept.came)):
            read = recent.goes_on(calls, came, handles, added, returned)
            if read is not None:
                return read
        turns, moved = whole_turns(returned, *turn_by_turn(calls, came, handles))
        said, moved = apart(added, turns, moved)
        raw = pin_volatile(pinned, said)
        known = self._known(raw)
        return Read(came, raw, moved, known, in_order=turns is came, calls_at=_last_calls(came))

    def _known(self, raw: Sequence[Any]) -> tuple[str, ...]:
        """Keys of the leading messages that an earlier request had, compared by value."""
        best: tuple[str, ...] = ()
        for recent in self._kept:
            count = 0
            for old, new in zip(recent.raw, raw, strict=False):
                if old != new:
                    break
                count += 1
            if count > len(best):
                best = recent.keys[:count]
        return best

    def note(self, read: Read, keys: tuple[str, ...]) -> None:
        """Keep a request with the keys of all its messages; the oldest of a few is dropped."""
        self._kept = [kept for kept in self._kept if keys[: len(kept.keys)] != kept.keys]
        came = list(read.came)
        self._kept.append(_Recent(came, read.raw, read.handles, keys, read.in_order, read.calls_at))
        del self._kept[:-_KEPT]

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()


def _last_calls(messages: Sequence[Any]) -> int:
    """Where the last message with calls is; -1 where none is."""
    for at in range(len(messages) - 1, -1, -1):
        if isinstance(messages[at], Mapping) and messages[at].get("tool_calls"):
            return at
    return -1
