"""The proof of promises P1-P5 for one session: its exported trajectory against its turn log.

The evidence is the log's own: what an engine was sent is known there by length and digest, what it sampled
by value. The first checks use nothing of the tree that built the segments; the last one builds them again
and compares, so that what carries no evidence of its own (cut reasons, causes of loss) is checked too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dressage_segments.audit_spans import LoggedCall, SpanAuditor, logged_calls
from dressage_segments.errors import SegmentsError
from dressage_segments.export import finalize
from dressage_segments.findings import Finding, Promise
from dressage_segments.policy import loss_policy
from dressage_segments.protocols import LogRecord
from dressage_segments.records import Final, final_from_record
from dressage_segments.replay import tree_from_records
from dressage_segments.trajectory import COLUMNS, Segment, Trajectory

_EVIDENCE: Mapping[str, Promise] = {
    "token_ids": Promise.P1,
    "logprobs": Promise.P3,
    "loss_mask": Promise.P2,
    "origin": Promise.P3,
    "version": Promise.P5,
    "call": Promise.P5,
    "offset": Promise.P5,
}
_FIELDS = (
    "session_id", "instance_id", "group_id", "rollout_id", "segment_index", "kind", "calls", "parent",
    "branch_offset", "cut_reason", "anchor", "tools_hash", "sampling", "finish_reason", "failure_class",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What one session's audit found. ``proven_tokens`` are trained in spans with no finding against them."""

    session_id: str
    findings: tuple[Finding, ...]
    sampled_tokens: int
    trained_tokens: int
    proven_tokens: int
    lost_tokens: Mapping[str, int]

    @property
    def ok(self) -> bool:
        """No doubt: every trained token is proven and every other one accounted for."""
        return not self.findings


def audit(records: Iterable[LogRecord], trajectory: Trajectory) -> AuditReport:
    """Check one session. Never raises for what it is given: what cannot be read is a finding too."""
    log = list(records)
    findings: list[Finding] = []
    calls: dict[str, LoggedCall] = {}
    try:
        calls = logged_calls(log)
    except SegmentsError as error:
        findings.append(Finding(Promise.P3, f"the turn log does not read: {error}"))
    findings += _shape(trajectory)
    auditor = SpanAuditor(calls)
    for segment in trajectory.segments:
        findings += auditor.check(segment)
    findings += _accounts(calls.values(), auditor.trained, trajectory)
    findings += _replayed(log, trajectory)
    return AuditReport(
        session_id=trajectory.session_id,
        findings=tuple(findings),
        sampled_tokens=trajectory.sampled_tokens,
        trained_tokens=trajectory.trained_tokens,
        proven_tokens=auditor.proven,
        lost_tokens=dict(trajectory.lost_tokens),
    )


def _shape(trajectory: Trajectory) -> Iterator[Finding]:
    """P3 and P4: the contract's own rules, shared ids, one anchor."""
    try:
        trajectory.validate()
    except SegmentsError as error:
        yield Finding(Promise.P3, f"the trajectory breaks its contract: {error}")
    for segment in trajectory.segments:
        for name in ("rollout_id", "group_id"):
            if getattr(segment, name) != getattr(trajectory, name):
                yield Finding(
                    Promise.P4, f"{name} differs from its siblings'", segment_index=segment.segment_index
                )
    anchors = sum(segment.anchor for segment in trajectory.segments)
    if anchors != bool(trajectory.segments):
        yield Finding(Promise.P4, f"{anchors} anchors in {len(trajectory.segments)} segments")


def _accounts(
    calls: Iterable[LoggedCall], trained: Mapping[str, NDArray[np.int32]], trajectory: Trajectory
) -> Iterator[Finding]:
    """P2: every sampled token of the log is trained once, or is among the lost."""
    sampled = trained_once = 0
    for call in calls:
        sampled += len(call.output_ids) + call.dropped_tokens
        counts = trained.get(call.call_id)
        if counts is None:
            continue
        trained_once += int(np.count_nonzero(counts))
        if (counts > 1).any():
            yield Finding(Promise.P2, "is trained in several segments", call_id=call.call_id)
        if call.loss is not None and counts.any():
            yield Finding(Promise.P3, f"is trained although {call.loss}", call_id=call.call_id)
    lost = sum(trajectory.lost_tokens.values())
    if sampled != trajectory.sampled_tokens:
        yield Finding(Promise.P2, f"the log samples {sampled}, the account says {trajectory.sampled_tokens}")
    if trained_once != trajectory.trained_tokens:
        yield Finding(
            Promise.P2, f"segments train {trained_once}, the account says {trajectory.trained_tokens}"
        )
    if sampled != trained_once + lost:
        yield Finding(
            Promise.P2, f"{sampled} sampled, {trained_once} trained, {lost} lost: they do not add up"
        )
    policy = loss_policy(trajectory.failure_class, graded=trajectory.outcome.get("reward") is not None)
    if trained_once and not policy.trains:
        yield Finding(Promise.P2, f"trains although the rollout is {trajectory.failure_class}")


def _replayed(log: Sequence[LogRecord], trajectory: Trajectory) -> Iterator[Finding]:
    """Build the trajectory again from the log up to its final record; compare every field and column."""
    finals = [at for at, record in enumerate(log) if record.kind == "final"]
    if not finals:
        yield Finding(Promise.P2, "the log has no final record: the session was not finalised")
        return
    try:
        final = final_from_record(log[finals[-1]])
        again = finalize(tree_from_records(log[: finals[-1]]), final)
    except SegmentsError as error:
        yield Finding(Promise.P1, f"the log does not rebuild: {error}")
        return
    yield from _compare_accounts(again, trajectory, final)
    if len(again.segments) != len(trajectory.segments):
        yield Finding(
            Promise.P2, f"the log gives {len(again.segments)} segments, not {len(trajectory.segments)}"
        )
        return
    for expected, found in zip(again.segments, trajectory.segments, strict=True):
        yield from _compare_segments(expected, found)


def _compare_accounts(again: Trajectory, found: Trajectory, final: Final) -> Iterator[Finding]:
    for name in ("session_id", "instance_id", "group_id", "rollout_id"):
        if getattr(again, name) != getattr(found, name):
            yield Finding(Promise.P4, f"{name} is not the log's {getattr(again, name)!r}")
    for name in ("generation", "failure_class", "outcome"):
        if getattr(final, name) != getattr(found, name):
            yield Finding(Promise.P2, f"{name} is not the log's {getattr(final, name)!r}")
    if dict(again.lost_tokens) != dict(found.lost_tokens):
        yield Finding(
            Promise.P2, f"lost_tokens: the log gives {again.lost_tokens}, the account {found.lost_tokens}"
        )


def _compare_segments(expected: Segment, found: Segment) -> Iterator[Finding]:
    where = found.segment_index
    for name in COLUMNS:
        left, right = getattr(expected, name), getattr(found, name)
        if not np.array_equal(left, right):
            yield Finding(_EVIDENCE[name], f"{name} is not what the log gives", segment_index=where)
    for name in ("experts", "experts_rows"):
        left, right = getattr(expected, name), getattr(found, name)
        same = left is right if left is None or right is None else np.array_equal(left, right)
        if not same:
            yield Finding(Promise.P3, f"{name} is not what the log gives", segment_index=where)
    for name in _FIELDS:
        if getattr(expected, name) != getattr(found, name):
            message = f"{name} is {getattr(found, name)!r}, the log gives {getattr(expected, name)!r}"
            yield Finding(Promise.P4, message, segment_index=where)
