"""Audit of a segment's spans: each against the engine call that the log has for it, and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dressage_segments.digest import IdsDigest
from dressage_segments.errors import InvalidFieldError
from dressage_segments.findings import Finding, Promise
from dressage_segments.protocols import LogRecord
from dressage_segments.records import turn_from_record
from dressage_segments.trajectory import Segment
from dressage_segments.turn import UNKNOWN_VERSION
from dressage_segments.validation import usable_logprobs
from dressage_segments.vocabulary import LossCause, Origin


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """One engine call as the log has it: int32, float32 and int32 columns over its N kept tokens."""

    call_id: str
    prompt_tokens: int
    prompt_digest: str
    output_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    loss: LossCause | None
    dropped_tokens: int


def logged_calls(records: Iterable[LogRecord]) -> dict[str, LoggedCall]:
    """Every engine call of a log. Raises SegmentsError for a broken record or a call id used twice."""
    calls: dict[str, LoggedCall] = {}
    for record in records:
        if record.kind != "turn":
            continue
        turn = turn_from_record(record)
        turn.validate()
        at = 0
        for call, loss in zip(turn.calls, turn.call_losses(), strict=True):
            if call.call_id in calls:
                raise InvalidFieldError("call_id", f"{call.call_id!r} is logged twice")
            piece = slice(at, at + call.output_tokens)
            at = piece.stop
            calls[call.call_id] = LoggedCall(
                call.call_id,
                call.prompt_tokens,
                call.prompt_digest,
                turn.output_ids[piece],
                turn.logprobs[piece],
                turn.versions[piece],
                loss,
                call.dropped_tokens,
            )
    return calls


class SpanAuditor:
    """Checks segments one after another and keeps, per call, how often each of its tokens is trained."""

    def __init__(self, calls: Mapping[str, LoggedCall]) -> None:
        self._calls = calls
        self.trained: dict[str, NDArray[np.int32]] = {}
        self.proven = 0
        """Trained tokens in spans that nothing was found against."""

    def check(self, segment: Segment) -> Iterator[Finding]:
        """P1, P3 and P5 for every span of the segment."""
        sampled = segment.origin == Origin.SAMPLED
        if not np.array_equal(sampled, segment.call >= 0):
            yield Finding(Promise.P5, "sampled tokens and calls differ", segment.segment_index)
        stray = (segment.loss_mask != 0) & ~sampled
        if stray.any():
            message = f"{int(stray.sum())} tokens are trained that were not sampled"
            yield Finding(Promise.P1, message, segment.segment_index)
        digest = IdsDigest()
        for begin, end in _spans(segment.call):
            digest.update(segment.token_ids[digest.tokens : begin])
            number = int(segment.call[begin])
            call_id = segment.calls[number] if number < len(segment.calls) else ""
            call = self._calls.get(call_id)
            if call is None:
                yield Finding(Promise.P5, "is not in the log", segment.segment_index, call_id or str(number))
                continue
            found = [
                Finding(promise, message, segment.segment_index, call_id)
                for promise, message in _check_span(segment, begin, end, call, digest)
            ]
            self._count(segment, begin, end, call, proven=not found)
            yield from found

    def _count(self, segment: Segment, begin: int, end: int, call: LoggedCall, *, proven: bool) -> None:
        mask = segment.loss_mask[begin:end] != 0
        counts = self.trained.setdefault(call.call_id, np.zeros(len(call.output_ids), np.int32))
        size = min(len(mask), len(counts))
        counts[:size] += mask[:size]
        if proven:
            self.proven += int(np.count_nonzero(mask))


def _spans(call: NDArray[np.int32]) -> Iterator[tuple[int, int]]:
    """Runs of one call index, -1 left out."""
    if not len(call):
        return
    bounds = [0, *(np.flatnonzero(np.diff(call)) + 1).tolist(), len(call)]
    for begin, end in itertools.pairwise(bounds):
        if call[begin] >= 0:
            yield begin, end


def _check_span(
    segment: Segment, begin: int, end: int, call: LoggedCall, digest: IdsDigest
) -> Iterator[tuple[Promise, str]]:
    if call.prompt_tokens != begin:
        yield Promise.P1, f"its output starts at {begin}, the engine was sent {call.prompt_tokens} ids"
    if call.prompt_digest != digest.hexdigest():
        yield Promise.P1, "the ids before its output are not those that the engine was sent"
    if not np.array_equal(segment.token_ids[begin:end], call.output_ids):
        yield Promise.P1, "its tokens are not those that the engine sampled"
    if not np.array_equal(segment.offset[begin:end], np.arange(len(call.output_ids))):
        yield Promise.P5, "its offsets are not 0, 1, 2, … over the whole output"
    if not np.array_equal(segment.version[begin:end], call.versions):
        yield Promise.P5, "its versions are not the logged ones"
    trained = segment.loss_mask[begin:end] != 0
    versions = segment.version[begin:end]
    if (trained & (versions == UNKNOWN_VERSION)).any():
        yield Promise.P5, "a trained token's version is unknown"
    logged = np.where(usable_logprobs(call.logprobs), call.logprobs, np.float32(0))
    if not np.array_equal(segment.logprobs[begin:end], logged):
        yield Promise.P3, "its logprobs are not the logged ones"
    if not usable_logprobs(segment.logprobs[begin:end]).all():
        yield Promise.P3, "a logprob is not finite or is above 0"
