"""One session's state in memory: its tree, its wire ids, what is in flight and how it ended."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dressage_segments import FailureClass, Final, SessionInfo, TrajectoryTree, Turn
from dressage_tito import ThinkingPolicy

from dressage_proxy.config import Limits
from dressage_proxy.dialects.memo import Memo
from dressage_proxy.echoes import Echoes
from dressage_proxy.hooks import HookMemory
from dressage_proxy.recents import Recents
from dressage_proxy.versions import VersionBudget

_OK, _TOO_MANY, _SERVER_ERRORS = 200, 429, 500


class State(StrEnum):
    """Where a session is in its life."""

    OPEN = "open"
    FINALIZED = "finalized"
    DELETED = "deleted"
    DAMAGED = "damaged"
    """Its log or trajectory does not read any more."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What is left in memory of a finalised session; its trajectory is in the store."""

    generation: int
    segments: int
    steps: int
    sampled_tokens: int
    trained_tokens: int
    lost_tokens: Mapping[str, int]
    branches: Mapping[str, int]
    """How many of each kind."""
    expired: bool = False
    """It ended by itself, since nobody used it."""
    failure_class: FailureClass = FailureClass.COMPLETED


@dataclass(slots=True)
class Session:
    """Used from one event loop."""

    info: SessionInfo
    tree: TrajectoryTree
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """What it sets of its sampling."""
    limits: Limits = field(default_factory=Limits)
    labels: Mapping[str, str] = field(default_factory=dict)
    thinking: ThinkingPolicy = "keep"
    """Whether sampled reasoning stays in the context, or goes where the chat template leaves it out."""
    state: State = State.OPEN
    ending: bool = False
    """Being finalised or deleted: takes no more model calls."""
    ended_as: Final | None = None
    """The end that the log has; the trajectory may still have to be published."""
    reply_keys: dict[str, str] = field(default_factory=dict)
    """Wire id of a tool call -> key of the assistant message that made it."""
    echoes: Echoes = field(default_factory=Echoes)
    """What was handed out, by what clients send back of it."""
    memo: Memo = field(default_factory=Memo)
    """What was read of its conversations."""
    native_ids: dict[str, str] = field(default_factory=dict)
    """Wire id -> the id in the model's own text, where its grammar has one."""
    recents: Recents = field(default_factory=Recents)
    """Its last requests."""
    pinned: dict[str, str] = field(default_factory=dict)
    """Volatile block -> the session's first value of it."""
    final: Summary | None = None
    versions: VersionBudget = field(default_factory=VersionBudget)
    hooked: HookMemory = field(default_factory=HookMemory)
    touched: float = 0.0
    """When it was last used, on the event loop's clock."""
    faults: int = 0
    """Model calls that failed for no reason of the agent's since one was last answered."""
    covered: dict[int, int] = field(default_factory=dict)
    """Turn -> the first position of its walk whose routed experts are not known yet."""

    @property
    def id(self) -> str:
        """The unguessable session id."""
        return self.info.session_id

    @property
    def branches(self) -> Mapping[str, int]:
        """How many branches of each kind its tree has, each seen at its end."""
        ends = (turn for turn in self.tree.turns if not self.tree.children(turn.index))
        return dict(Counter(turn.kind.value for turn in ends))

    @property
    def unpublished(self) -> bool:
        """Whether it has ended and its trajectory is still to be published."""
        return self.ended_as is not None and self.final is None and self.state is State.OPEN

    def ends_otherwise(self, outcome: Mapping[str, Any] | None, failure_class: FailureClass | None) -> str:
        """How another end, of which None is not said, differs from the first, which stays; "" where it does
        not, or there was none."""
        first = self.ended_as
        if first is None:
            return ""
        if failure_class not in (None, first.failure_class):
            return f"as {failure_class}, it stays {first.failure_class}"
        if outcome is not None and dict(outcome) != dict(first.outcome):
            return "with another outcome, the first stays"
        return ""

    def called(self, status: int) -> None:
        """Note the HTTP status that a model call came to: an agent may end for want of an answer."""
        if status == _OK:
            self.faults = 0
        elif status == _TOO_MANY or status >= _SERVER_ERRORS:
            self.faults += 1

    def forget_conversation(self) -> None:
        """It has ended: its counts are all that is asked of it from now on."""
        self.tree = TrajectoryTree(self.info)
        self.echoes = Echoes()
        self.hooked = HookMemory()
        for kept in (self.recents, self.memo, self.reply_keys, self.native_ids, self.pinned, self.covered):
            kept.clear()

    def wire_id(self) -> str:
        """A new tool-call id, unique in the session and alphanumeric: agents strip other characters."""
        while True:
            wire = "call" + secrets.token_hex(10)
            if wire not in self.reply_keys:
                return wire

    def remember(self, turn: Turn) -> None:
        """Note the wire ids that a committed turn handed out, and the volatile blocks that it pinned."""
        self.versions.sees(turn.versions)
        if turn.experts is not None:
            self.covered[turn.index] = turn.experts_start + len(turn.experts)
        elif turn.parent in self.covered:
            self.covered[turn.index] = self.covered[turn.parent]
        for name, block in dict(turn.extra.get("pinned", {})).items():
            self.pinned.setdefault(name, block)
        self.echoes.remember(turn, self.id)
        for wire, native in dict(turn.extra.get("wire_ids", {})).items():
            self.reply_keys[wire] = turn.reply_key
            if native:
                self.native_ids[wire] = native
