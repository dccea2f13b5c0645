"""Finding the recorded branch that a request extends: an exact trie over message keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

_ROOT_STATE = 0
_REMEMBERED = 4


class _Walk(NamedTuple):
    """The keys of a whole walk, and the state after them."""

    keys: tuple[str, ...]
    state: int


class BranchIndex:
    """Maps message-key sequences to the turns whose walks they spell.

    Each recorded message is one edge, so adding a turn costs O(its own messages), and two sequences never
    collide as hashes could. Looking up costs one dictionary probe a message; the walks that were found last
    are remembered, and a sequence that goes on after one of them costs a probe a message after it. States
    never change their meaning, so what is remembered stays true.
    """

    __slots__ = ("_edges", "_ends", "_found", "_states")

    def __init__(self) -> None:
        self._edges: dict[tuple[int, str], int] = {}
        self._ends: dict[int, list[int]] = {}
        self._states: list[int] = []
        self._found: list[_Walk] = []
        """The last found last."""

    def add(self, parent: int, keys: Sequence[str]) -> None:
        """Record the next turn: ``keys`` are what it added to turn ``parent``'s walk (-1: to nothing)."""
        state = self._states[parent] if parent >= 0 else _ROOT_STATE
        for key in keys:
            state = self._edges.setdefault((state, key), len(self._edges) + 1)
        self._ends.setdefault(state, []).append(len(self._states))
        self._states.append(state)

    def ends(self, keys: Sequence[str]) -> Iterator[tuple[int, list[int]]]:
        """For each prefix of ``keys`` that is a whole walk: its length and its turns; the longest first."""
        keys = tuple(keys)
        known = self._known(keys)
        start, state = (0, _ROOT_STATE) if known is None else (len(known.keys), known.state)
        longer = self._whole(keys, start, state)
        if longer:
            self._remember(_Walk(keys[: longer[0][0]], longer[0][1]), known)
        for depth, end in longer:
            yield depth, self._ends[end]
        if known is not None:
            yield start, self._ends[state]
            for depth, end in self._whole(keys[: start - 1], 0, _ROOT_STATE):
                yield depth, self._ends[end]

    def depth(self, keys: Sequence[str]) -> int:
        """How many leading keys were recorded in this order, whole walk or not."""
        return max((depth for depth, _ in self._follow(keys, 0, _ROOT_STATE)), default=0)

    def _known(self, keys: tuple[str, ...]) -> _Walk | None:
        """The longest remembered walk that ``keys`` go on from."""
        best: _Walk | None = None
        for walk in self._found:
            size = len(walk.keys)
            if (best is None or size > len(best.keys)) and keys[:size] == walk.keys:
                best = walk
        return best

    def _remember(self, walk: _Walk, known: _Walk | None) -> None:
        """Keep a walk that was found, in the place of the one that it goes on from."""
        if known is not None:
            self._found.remove(known)
        self._found.append(walk)
        del self._found[:-_REMEMBERED]

    def _whole(self, keys: Sequence[str], start: int, state: int) -> list[tuple[int, int]]:
        """Length and state of each whole walk in ``keys`` longer than ``start``; the longest first."""
        found = [(depth, after) for depth, after in self._follow(keys, start, state) if after in self._ends]
        found.reverse()
        return found

    def _follow(self, keys: Sequence[str], start: int, state: int) -> Iterator[tuple[int, int]]:
        """Each length after ``start``, at which the state is ``state``, and the state there."""
        for depth in range(start, len(keys)):
            after = self._edges.get((state, keys[depth]))
            if after is None:
                return
            state = after
            yield depth + 1, state
