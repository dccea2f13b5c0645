"""The trajectory tree of one session: each node is a turn and holds only what it added."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dressage_segments.branches import BranchIndex
from dressage_segments.columns import Column
from dressage_segments.digest import IdsDigest
from dressage_segments.errors import ContextMismatchError, TreeError, UnknownTurnError
from dressage_segments.turn import ROOT, SessionInfo, Turn
from dressage_segments.vocabulary import LossCause, Mark

_CACHED_TIPS = 4
_TIP_GROWTH = 1.25
_SiblingKey = tuple[int, str, tuple[str, ...] | bytes]


@dataclass(frozen=True, slots=True)
class Match:
    """The branch that a request extends: ``keys[:matched]`` are the messages of turn ``index``'s walk."""

    index: int
    matched: int
    """How many of the request's messages are recorded; ``keys[matched:]`` are new."""


@dataclass(slots=True)
class _Tip:
    """The whole ids of one walk and their running digest."""

    ids: Column[np.int32]
    digest: IdsDigest


class TrajectoryTree:
    """One session's turns in commit order, each hanging on the turn whose walk it extends.

    The recorder's use, per call::

        match = tree.match(keys, tools_hash)         # None: start a branch with parent ROOT
        prefix = tree.ids(match.index)               # int32 view; what the engine saw and emitted
        prompt_digest = tree.digest(match.index).update(delta_ids).hexdigest()
        tree.add(Turn(index=len(tree), parent=match.index, ...))

    A retry is a turn with the parent, tools and new messages (or new ids, where no messages are named) of an
    earlier one. Of such siblings those with children live; if none has any, the last one known as delivered,
    else the last one not marked undelivered. Two parallel sub-agents that are asked the very same, and end
    with that one call, cannot be told from a retry: one of them is lost as ``retry``. Not safe for
    concurrent threads.
    """

    def __init__(self, info: SessionInfo) -> None:
        self.info = info
        self._turns: list[Turn] = []
        self._children: list[list[int]] = []
        self._ends: list[int] = []
        self._marks: dict[int, Mark] = {}
        self._siblings: dict[_SiblingKey, list[int]] = {}
        self._contests: dict[_SiblingKey, tuple[bool, int]] = {}
        self._branches = BranchIndex()
        self._calls: set[str] = set()
        self._tips: OrderedDict[int, _Tip] = OrderedDict()

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def turns(self) -> Sequence[Turn]:
        """All turns in commit order; do not change it."""
        return self._turns

    @property
    def sampled_tokens(self) -> int:
        """Every token that any turn's calls sampled."""
        return sum(turn.sampled_tokens for turn in self._turns)

    def turn(self, index: int) -> Turn:
        """Turn ``index``. Raises UnknownTurnError."""
        if not 0 <= index < len(self._turns):
            raise UnknownTurnError(f"turn {index} is not one of {len(self._turns)} turns")
        return self._turns[index]

    def children(self, index: int) -> Sequence[int]:
        """Turns that extend turn ``index``, in commit order."""
        self.turn(index)
        return self._children[index]

    def marked(self, index: int) -> Mark | None:
        """The last mark of turn ``index``."""
        self.turn(index)
        return self._marks.get(index)

    def match(self, keys: Sequence[str], tools_hash: str) -> Match | None:
        """The longest recorded walk, under the same tools, that the request's message keys extend.

        A walk's keys are each turn's ``input_keys`` and then its ``reply_key``. Where several turns end at
        the same prefix, the newest that is not lost is taken. None: nothing recorded is extended.
        """
        for depth, turns in self._branches.ends(keys):
            usable = [
                i
                for i in turns
                if self._turns[i].tools_hash == tools_hash and self._marks.get(i) is not Mark.SUPERSEDED
            ]
            if len(usable) == 1:
                return Match(usable[0], depth)
            if usable:
                live = [i for i in usable if self.structural_loss(i) is None]
                return Match((live or usable)[-1], depth)
        return None

    def divergence(self, keys: Sequence[str], tools_hash: str) -> str:
        """Why :meth:`match` found nothing, as a cut reason.

        "" in an empty tree; ``tools_changed`` where other tools would match; ``history_changed`` where the
        first messages are recorded but then differ; else ``new_context``.
        """
        if not self._turns:
            return ""
        if next(self._branches.ends(keys), None) is not None:
            return "tools_changed"
        return "history_changed" if self._branches.depth(keys) else "new_context"

    def add(self, turn: Turn) -> None:
        """Commit a turn. O(tokens and messages that it added) at a recent tip, else one copy of its prefix.

        Raises TreeError when it is of another session, out of order, or repeats an engine call id;
        InvalidFieldError for broken columns; ContextMismatchError when an engine call was not made with
        exactly the ids that precede its output here (P1).
        """
        if turn.session_id != self.info.session_id:
            raise TreeError(f"session_id: turn is of {turn.session_id!r}, tree of {self.info.session_id!r}")
        if turn.index != len(self._turns):
            raise TreeError(
                f"index: turn {turn.index} comes after {len(self._turns)} turns, must be {len(self)}"
            )
        turn.validate()
        fresh = {call.call_id for call in turn.calls}
        if len(fresh) != len(turn.calls) or fresh & self._calls:
            raise TreeError("calls: an engine call id is used twice in this session: rids must be unique")
        tip = self._extended_tip(turn)
        self._turns.append(_compact(turn))
        self._children.append([])
        self._ends.append(len(tip.ids))
        self._calls |= fresh
        if turn.parent != ROOT:
            self._children[turn.parent].append(turn.index)
            self._contests.pop(_sibling_key(self._turns[turn.parent]), None)
        siblings = _sibling_key(turn)
        self._siblings.setdefault(siblings, []).append(turn.index)
        self._contests.pop(siblings, None)
        self._branches.add(turn.parent, (*turn.input_keys, turn.reply_key))
        self._keep_tip(turn.index, tip)

    def drop_experts(self) -> None:
        """Forget the turns' routed experts: they are many times what all else takes, and the log has them."""
        for index, turn in enumerate(self._turns):
            if turn.experts is not None:
                self._turns[index] = dataclasses.replace(turn, experts=None)

    def mark(self, index: int, mark: Mark) -> None:
        """Note a later fact about turn ``index``; the last mark holds. Raises UnknownTurnError."""
        self._contests.pop(_sibling_key(self.turn(index)), None)
        self._marks[index] = mark

    def walk(self, index: int) -> tuple[int, ...]:
        """Turn indices from the branch's first turn to ``index``."""
        path = []
        while index != ROOT:
            path.append(index)
            index = self.turn(index).parent
        return tuple(reversed(path))

    def end(self, index: int) -> int:
        """Tokens of the walk to turn ``index``, its output included."""
        self.turn(index)
        return self._ends[index]

    def prompt_ids(self, index: int) -> NDArray[np.int32]:
        """The ids that turn ``index``'s first call was sampled after, int32 [T], read-only."""
        return self.ids(index)[: self.end(index) - len(self._turns[index].output_ids)]

    def ids(self, index: int) -> NDArray[np.int32]:
        """The ids of the walk to turn ``index``, its output included: int32 [T], read-only.

        A view at a recent tip, else one copy; later turns do not change it.
        """
        return self._tip(index).ids.view()

    def digest(self, index: int) -> IdsDigest:
        """A fresh digest of :meth:`ids`, ready to be continued with the next call's delta."""
        return self._tip(index).digest.copy()

    def structural_loss(self, index: int) -> LossCause | None:
        """Why turn ``index`` is not trained as the tree stands now: superseded, undelivered, or a retry."""
        turn = self.turn(index)
        mark = self._marks.get(index)
        if mark is Mark.SUPERSEDED:
            return LossCause.RETRY
        if self._children[index]:
            return None
        if mark is Mark.UNDELIVERED:
            return LossCause.UNDELIVERED
        answered, last = self._contest(_sibling_key(turn))
        return None if index == last and not answered else LossCause.RETRY

    def _contest(self, key: _SiblingKey) -> tuple[bool, int]:
        """Whether a sibling goes on, and which one lives where none does. Kept until one of them changes."""
        found = self._contests.get(key)
        if found is None:
            siblings = self._siblings[key]
            marks = {i: self._marks.get(i) for i in siblings}
            answered = any(self._children[i] and marks[i] is not Mark.SUPERSEDED for i in siblings)
            rivals = [i for i in siblings if marks[i] not in (Mark.SUPERSEDED, Mark.UNDELIVERED)]
            delivered = [i for i in rivals if marks[i] is Mark.DELIVERED]
            found = self._contests[key] = answered, (delivered or rivals or [ROOT])[-1]
        return found

    def _tip(self, index: int) -> _Tip:
        tip = self._tips.get(index)
        if tip is None:
            tip = _Tip(
                Column(np.int32, name="ids", capacity=self.end(index), growth=_TIP_GROWTH), IdsDigest()
            )
            for step in self.walk(index):
                for piece in (self._turns[step].delta_ids, self._turns[step].output_ids):
                    tip.ids.append(piece)
            tip.digest.update(tip.ids.view())
            self._keep_tip(index, tip)
        else:
            self._tips.move_to_end(index)
        return tip

    def _keep_tip(self, index: int, tip: _Tip) -> None:
        self._tips[index] = tip
        while len(self._tips) > _CACHED_TIPS:
            self._tips.popitem(last=False)

    def _extended_tip(self, turn: Turn) -> _Tip:
        """The tip after ``turn``. The parent's is taken over, and given up only once the turn is accepted."""
        if turn.parent == ROOT:
            tip = _Tip(Column(np.int32, name="ids", growth=_TIP_GROWTH), IdsDigest())
        else:
            tip = self._tip(turn.parent)
        digest = tip.digest.copy()
        _check_calls(turn, digest)
        self._tips.pop(turn.parent, None)
        tip.ids.append(turn.delta_ids)
        tip.ids.append(turn.output_ids)
        tip.digest = digest
        return tip


def _check_calls(turn: Turn, digest: IdsDigest) -> None:
    """Feed the turn's ids to ``digest``, and compare each call's own account of its prompt on the way."""
    digest.update(turn.delta_ids)
    at = 0
    for call in turn.calls:
        if call.prompt_tokens != digest.tokens or call.prompt_digest != digest.hexdigest():
            raise ContextMismatchError(
                f"call {call.call_id}: sampled after {call.prompt_tokens} ids of {call.prompt_digest}, "
                f"but turn {turn.index} puts its output after {digest.tokens} of {digest.hexdigest()}"
            )
        digest.update(turn.output_ids[at : at + call.output_tokens])
        at += call.output_tokens


def _sibling_key(turn: Turn) -> _SiblingKey:
    return turn.parent, turn.tools_hash, turn.input_keys or turn.delta_ids.tobytes()


def _compact(turn: Turn) -> Turn:
    """The turn with arrays that do not keep a larger buffer alive: an array's, or the log's that they were
    read from. Experts are most of what a log holds, and stay views."""
    swollen = {
        name: array.copy()
        for name in ("delta_ids", "delta_origin", "output_ids", "logprobs", "versions", "experts")
        if (array := getattr(turn, name)) is not None
        and array.base is not None
        and _is_swollen(array, of_log=name != "experts")
    }
    return dataclasses.replace(turn, **swollen) if swollen else turn


def _is_swollen(array: NDArray[np.generic], *, of_log: bool) -> bool:
    base = array.base
    while isinstance(base, np.ndarray):
        if base.nbytes > 2 * array.nbytes:
            return True
        base = base.base
    return of_log and base is not None
