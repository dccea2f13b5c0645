"""Turns that said the same: which of them a message is, by what comes before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import eq

from dressage_segments import TrajectoryTree
from dressage_segments.turn import ROOT
from dressage_tito import Message

from dressage_proxy.canonical import message_key

_NEAR = 16
"""So many messages before one tell which turn it is."""


def likeliest(tree: TrajectoryTree, turns: Sequence[int], before: Sequence[str]) -> tuple[int, int]:
    """Of some turns the newest one that answered most of the last messages with keys ``before``, and of how
    many that is true."""
    window = min(_NEAR, len(before))
    best, most = turns[-1], (-1, False)
    for turn in reversed(turns):
        found = _answered(tree, turn, before, window)
        if found > most:
            best, most = turn, found
        if most >= (window, True):
            break
    return best, most[0]


def _answered(tree: TrajectoryTree, index: int, before: Sequence[str], window: int) -> tuple[int, bool]:
    """How many of the last ``window`` messages a turn has in the very same place before it, and True; where
    that is none, behind one more that was for its request alone, and False."""
    asked: list[str] = []
    while index != ROOT and len(asked) <= window:
        turn = tree.turn(index)
        asked += reversed(turn.input_keys[-window - 1 :])
        index = turn.parent
        if index != ROOT:
            asked.append(tree.turn(index).reply_key)
    last = before[-window:][::-1] if window else ()
    count = _same(asked, last)
    if not count and asked[1:2] == list(last[:1]):
        return _same(asked[1:], last), False
    return count, True


def _same(one: Sequence[str], two: Sequence[str]) -> int:
    return sum(map(eq, one, two))


@dataclass(slots=True)
class Nameless:
    """What the turns with calls of a session said, whatever ids the calls have; looked up only once a client
    sends calls under ids that nobody gave it."""

    turns: dict[str, list[int]] = field(default_factory=dict)
    """Key of a message without its call ids -> the turns that returned it."""
    read: int = 0
    """So many turns of the session are in it."""

    def find(
        self,
        tree: TrajectoryTree,
        returned: Callable[[int], Message | None],
        message: Message,
        before: Sequence[str],
    ) -> int | None:
        """The turn that said what a message does and answered one of the messages before it at least; None
        where there is none. ``returned`` gives the message that a turn was returned as."""
        for turn in tree.turns[self.read :]:
            said = returned(turn.index) if turn.extra.get("wire_ids") else None
            if said is not None:
                self.turns.setdefault(_key(said), []).append(turn.index)
        self.read = len(tree)
        same = self.turns.get(_key(message))
        best, most = likeliest(tree, same, before) if same else (ROOT, 0)
        return best if most > 0 else None


def _key(message: Message) -> str:
    calls = tuple(replace(call, id="") for call in message.tool_calls)
    return message_key(replace(message, tool_calls=calls, name=""))
