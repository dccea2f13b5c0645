"""From a tree to segments: which walks are exported, who trains each token, and the account of the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dressage_segments.digest import IdsDigest
from dressage_segments.errors import ContextMismatchError
from dressage_segments.policy import loss_policy
from dressage_segments.records import Final
from dressage_segments.trajectory import Segment, Trajectory
from dressage_segments.tree import TrajectoryTree
from dressage_segments.turn import ROOT, Turn
from dressage_segments.validation import usable_logprobs
from dressage_segments.vocabulary import BranchKind, FailureClass, LossCause, Mark, Origin


@dataclass(frozen=True, slots=True)
class Export:
    """A tree's segments and the account of every sampled token: sampled = trained + sum(lost) (P2)."""

    segments: tuple[Segment, ...]
    sampled_tokens: int
    trained_tokens: int
    lost_tokens: Mapping[str, int]


def export(
    tree: TrajectoryTree,
    *,
    failure_class: FailureClass = FailureClass.COMPLETED,
    lost_as: LossCause | None = None,
    train_helpers: bool = False,
) -> Export:
    """Every live walk of ``tree`` as a segment.

    A turn that several walks share is trained in the first (of main kind, else the oldest) and copied with
    mask 0 into the others, which name it by ``parent`` and ``branch_offset``. Turns lost as a whole (retries,
    undelivered replies, helper calls unless ``train_helpers``) are exported only where a live turn needs them
    as context. With ``lost_as`` nothing is trained: what would have been is counted under that cause.
    Raises ContextMismatchError when an engine call's prompt is not what precedes its output (P1).
    """
    losses = turn_losses(tree, train_helpers=train_helpers)
    paths = _live_paths(tree, losses)
    owners: dict[int, int] = {}
    for number, path in enumerate(paths):
        for index in path:
            owners.setdefault(index, number)
    anchor = _anchor(tree, losses, owners, len(paths))
    segments = []
    for number, path in enumerate(paths):
        builder = _SegmentBuilder(tree, path, lost_as is None)
        segments.append(builder.build(number, owners, losses, failure_class, anchor == number))
    lost = _count_losses(tree, losses, lost_as)
    sampled = tree.sampled_tokens
    return Export(tuple(segments), sampled, sampled - sum(lost.values()), lost)


def finalize(tree: TrajectoryTree, final: Final) -> Trajectory:
    """The trajectory of a session that ended so. The failure class decides whether anything trains (P8);
    ``reward`` in the outcome says that what a timeout left was graded."""
    policy = loss_policy(final.failure_class, graded=final.outcome.get("reward") is not None)
    exported = export(
        tree,
        failure_class=final.failure_class,
        lost_as=policy.lost_as,
        train_helpers=final.train_helpers,
    )
    return Trajectory(
        session_id=tree.info.session_id,
        instance_id=tree.info.instance_id,
        group_id=tree.info.group_id,
        rollout_id=tree.info.rollout_id,
        generation=final.generation,
        segments=exported.segments,
        failure_class=final.failure_class,
        outcome=final.outcome,
        sampled_tokens=exported.sampled_tokens,
        trained_tokens=exported.trained_tokens,
        lost_tokens=exported.lost_tokens,
    )


def turn_losses(tree: TrajectoryTree, *, train_helpers: bool = False) -> list[LossCause | None]:
    """For each turn, why all of it is lost, or None. Calls may be lost within a turn that is not."""
    losses: list[LossCause | None] = []
    abandoned: list[bool] = []
    for turn in tree.turns:
        under_dead = turn.parent != ROOT and abandoned[turn.parent]
        abandoned.append(under_dead or tree.marked(turn.index) is Mark.SUPERSEDED)
        cause = LossCause.ABANDONED_BRANCH if under_dead else tree.structural_loss(turn.index)
        if cause is None and turn.kind is BranchKind.HELPER and not train_helpers:
            cause = LossCause.HELPER_CALL
        losses.append(cause)
    return losses


def _live_paths(tree: TrajectoryTree, losses: Sequence[LossCause | None]) -> list[tuple[int, ...]]:
    """Walks to the last live turns: roots in commit order; below one root, main first, then oldest."""
    needed = [cause is None for cause in losses]
    for turn in reversed(tree.turns):
        if needed[turn.index] and turn.parent != ROOT:
            needed[turn.parent] = True
    leaves = [
        i for i in range(len(tree)) if needed[i] and not any(needed[child] for child in tree.children(i))
    ]
    paths = [tree.walk(leaf) for leaf in leaves]
    return sorted(paths, key=lambda p: (p[0], tree.turn(p[-1]).kind is not BranchKind.MAIN, p))


def _anchor(
    tree: TrajectoryTree, losses: Sequence[LossCause | None], owners: Mapping[int, int], count: int
) -> int:
    """The segment that trains the main branch's last step; without one, the last segment."""
    for turn in reversed(tree.turns):
        if turn.kind is BranchKind.MAIN and losses[turn.index] is None:
            return owners[turn.index]
    return count - 1


def _count_losses(
    tree: TrajectoryTree, losses: Sequence[LossCause | None], lost_as: LossCause | None
) -> dict[str, int]:
    lost: Counter[str] = Counter()
    for turn, whole in zip(tree.turns, losses, strict=True):
        for call, cause in zip(turn.calls, turn.call_losses(), strict=True):
            why = whole or cause or lost_as
            if why is not None and call.output_tokens:
                lost[why.value] += call.output_tokens
            if call.dropped_tokens:
                lost[LossCause.PAST_STOP.value] += call.dropped_tokens
    return dict(lost)


class _SegmentBuilder:
    """Fills the columns of one walk, turn by turn."""

    def __init__(self, tree: TrajectoryTree, path: Sequence[int], trains: bool) -> None:
        self._tree = tree
        self._path = path
        self._trains = trains
        size = tree.end(path[-1])
        self._ids = np.empty(size, np.int32)
        self._logprobs = np.zeros(size, np.float32)
        self._mask = np.zeros(size, np.uint8)
        self._origin = np.full(size, Origin.SAMPLED, np.uint8)
        self._version = np.full(size, -1, np.int32)
        self._call = np.full(size, -1, np.int32)
        self._offset = np.full(size, -1, np.int32)
        self._calls: list[str] = []
        self._digest = IdsDigest()
        self._experts: list[NDArray[Any]] = []
        self._experts_end = 0

    def build(
        self,
        number: int,
        owners: Mapping[int, int],
        losses: Sequence[LossCause | None],
        failure_class: FailureClass,
        anchor: bool,
    ) -> Segment:
        for index in self._path:
            own = owners[index] == number
            self._put(self._tree.turn(index), own and self._trains and losses[index] is None)
        shared = [index for index in self._path if owners[index] != number]
        first_own = self._tree.turn(self._path[len(shared)])
        leaf = self._tree.turn(self._path[-1])
        info = self._tree.info
        return Segment(
            session_id=info.session_id,
            instance_id=info.instance_id,
            group_id=info.group_id,
            rollout_id=info.rollout_id,
            segment_index=number,
            kind=leaf.kind,
            token_ids=self._ids,
            logprobs=self._logprobs,
            loss_mask=self._mask,
            origin=self._origin,
            version=self._version,
            call=self._call,
            offset=self._offset,
            calls=tuple(self._calls),
            parent=owners[shared[-1]] if shared else -1,
            branch_offset=self._tree.end(shared[-1]) if shared else 0,
            cut_reason=first_own.cut_reason,
            anchor=anchor,
            tools_hash=leaf.tools_hash,
            sampling=self._sampling(),
            finish_reason=leaf.finish_reason,
            failure_class=failure_class,
            experts=np.concatenate(self._experts) if self._experts else None,
            experts_rows=np.arange(self._experts_end, dtype=np.int32) if self._experts else None,
        )

    def _put_experts(self, turn: Turn) -> None:
        """Stitch: each turn's rows, all of one model, follow those of the turns before it without a gap."""
        if turn.experts is None:
            return
        shape = turn.experts.shape[1:]
        if self._experts and self._experts[0].shape[1:] != shape:
            raise ContextMismatchError(
                f"turn {turn.index} has experts of {shape} layers and choices, "
                f"the turns before it of {self._experts[0].shape[1:]}"
            )
        if turn.experts_start != self._experts_end:
            raise ContextMismatchError(
                f"turn {turn.index} has experts from position {turn.experts_start} on, "
                f"the turns before it up to {self._experts_end}"
            )
        self._experts.append(turn.experts)
        self._experts_end += len(turn.experts)
        if self._experts_end > self._tree.end(turn.index):
            raise ContextMismatchError(
                f"turn {turn.index} has experts up to position {self._experts_end}, "
                f"its tokens end at {self._tree.end(turn.index)}"
            )

    def _put(self, turn: Turn, trains: bool) -> None:
        self._put_experts(turn)
        at = self._digest.tokens
        end = at + len(turn.delta_ids)
        self._ids[at:end] = turn.delta_ids
        self._origin[at:end] = turn.delta_origin
        self._digest.update(turn.delta_ids)
        first = 0
        for call, cause in zip(turn.calls, turn.call_losses(), strict=True):
            if self._digest.tokens != call.prompt_tokens or self._digest.hexdigest() != call.prompt_digest:
                raise ContextMismatchError(
                    f"call {call.call_id} was not sampled after the ids of its segment"
                )
            at, end = end, end + call.output_tokens
            piece = slice(first, first + call.output_tokens)
            first = piece.stop
            logprobs = turn.logprobs[piece]
            self._ids[at:end] = turn.output_ids[piece]
            # An unusable number is kept in the log alone: here its mask is 0, and 0 cannot poison a product.
            self._logprobs[at:end] = (
                logprobs if cause is None else np.where(usable_logprobs(logprobs), logprobs, 0)
            )
            self._mask[at:end] = trains and cause is None
            self._version[at:end] = turn.versions[piece]
            self._call[at:end] = len(self._calls)
            self._offset[at:end] = np.arange(call.output_tokens)
            self._calls.append(call.call_id)
            self._digest.update(turn.output_ids[piece])

    def _sampling(self) -> dict[str, Any]:
        """The first turn's parameters; calls of other turns that differ are flagged under ``overrides``."""
        turns = [self._tree.turn(index) for index in self._path]
        base = dict(turns[0].sampling)
        overrides = {
            call.call_id: dict(turn.sampling)
            for turn in turns[1:]
            if dict(turn.sampling) != base
            for call in turn.calls
        }
        return {**base, "overrides": overrides} if overrides else base
