"""Finding the recorded branch that a request extends: an exact trie over message keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_ROOT_STATE = 0


class BranchIndex:
    """Maps message-key sequences to the turns whose walks they spell.

    Each recorded message is one edge, so adding a turn costs O(its own messages), looking up costs one
    dictionary probe a message, and two sequences never collide as hashes could.
    """

    __slots__ = ("_edges", "_ends", "_states")

    def __init__(self) -> None:
        self._edges: dict[tuple[int, str], int] = {}
        self._ends: dict[int, list[int]] = {}
        self._states: list[int] = []

    def add(self, parent: int, keys: Sequence[str]) -> None:
        """Record the next turn: ``keys`` are what it added to turn ``parent``'s walk (-1: to nothing)."""
        state = self._states[parent] if parent >= 0 else _ROOT_STATE
        for key in keys:
            state = self._edges.setdefault((state, key), len(self._edges) + 1)
        self._ends.setdefault(state, []).append(len(self._states))
        self._states.append(state)

    def ends(self, keys: Sequence[str]) -> list[tuple[int, list[int]]]:
        """For each prefix of ``keys`` that is a whole walk: its length and its turns; the longest first."""
        found = [(depth, self._ends[state]) for depth, state in self._follow(keys) if state in self._ends]
        found.reverse()
        return found

    def depth(self, keys: Sequence[str]) -> int:
        """How many leading keys were recorded in this order, whole walk or not."""
        return max((depth for depth, _ in self._follow(keys)), default=0)

    def _follow(self, keys: Sequence[str]) -> Iterator[tuple[int, int]]:
        state: int | None = _ROOT_STATE
        for depth, key in enumerate(keys, 1):
            state = self._edges.get((state, key))  # type: ignore[arg-type]
            if state is None:
                return
            yield depth, state
