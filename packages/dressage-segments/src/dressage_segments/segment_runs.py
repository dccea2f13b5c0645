"""A segment's columns as runs, and back: what :mod:`dressage_segments.trajectory_io` keeps of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dressage_segments.errors import BufferFormatError
from dressage_segments.narrow import MAX_RUN_ENTRIES, check_lengths, widen
from dressage_segments.shared import Shared
from dressage_segments.trajectory import COLUMNS, Segment
from dressage_segments.vocabulary import Origin

RUN_COLUMNS = ("origin", "loss_mask", "version", "call", "offset")
"""Columns 1 to 5 of the tensor ``runs`` int32 [R, 6]; column 0 is the run's length. The offset is that of the
run's first token; it rises by one where the origin is sampled, and stays elsewhere."""

_Runs = NDArray[np.int32]


def to_runs(segment: Segment, begin: int) -> _Runs:
    """The runs of a segment from token ``begin`` on: int32 [R, 6]."""
    columns = [getattr(segment, name)[begin:] for name in RUN_COLUMNS]
    size = len(segment) - begin
    if not size:
        return np.empty((0, 6), np.int32)
    *constant, offset = columns
    rises = segment.origin[begin + 1 :] == Origin.SAMPLED
    cut = np.diff(offset) != rises
    for column in constant:
        cut |= column[1:] != column[:-1]
    starts = np.concatenate(([0], np.flatnonzero(cut) + 1))
    lengths = np.diff(starts, append=size)
    return np.stack([lengths, *(column[starts] for column in columns)], axis=1).astype(np.int32)


def rows_to_runs(rows: NDArray[np.int32]) -> _Runs:
    """Rising positions [R] as int32 [Q, 2]: the first of each stretch without a gap, and its length."""
    if not len(rows):
        return np.empty((0, 2), np.int32)
    starts = np.concatenate(([0], np.flatnonzero(np.diff(rows) != 1) + 1))
    return np.stack((rows[starts], np.diff(starts, append=len(rows))), axis=1).astype(np.int32)


class SegmentParts:
    """Takes the columns of one segment after another off the tensors that hold those of all.

    Raises BufferFormatError for tensors of other shapes and dtypes, and for a token too many or too few.
    """

    def __init__(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        missing = {"token_ids", "logprobs", "runs"} - tensors.keys()
        if missing:
            raise BufferFormatError(f"not a trajectory: tensors missing {sorted(missing)}")
        self._experts = {
            name: a for name, a in tensors.items() if name.endswith((".experts", ".experts_rows"))
        }
        unknown = tensors.keys() - self._experts.keys() - {"token_ids", "logprobs", "runs"}
        if unknown:
            raise BufferFormatError(f"tensors {sorted(unknown)} belong to no trajectory")
        self._ids: NDArray[np.int32] = widen(tensors["token_ids"], np.dtype(np.int32))
        self._logprobs, self._runs = tensors["logprobs"], tensors["runs"]
        if self._logprobs.dtype != np.float32 or self._logprobs.ndim != 1:
            raise BufferFormatError(
                f"logprobs: {self._logprobs.dtype} {self._logprobs.shape}, not float32 [N]"
            )
        if self._runs.dtype != np.int32 or self._runs.shape[1:] != (1 + len(RUN_COLUMNS),):
            raise BufferFormatError(f"runs: {self._runs.dtype} {self._runs.shape}, not int32 [R, 6]")
        check_lengths(self._runs[:, 0], len(self._ids))
        self._ends = np.cumsum(self._runs[:, 0], dtype=np.int64)
        self._token = self._logprob = self._run = 0

    def next(self, index: int, tokens: int, parent: Segment | None, known: Shared) -> dict[str, NDArray[Any]]:
        """The whole columns of segment ``index``: ``known.tokens`` of its parent's, then ``tokens`` of its
        own."""
        end = self._token + tokens
        if end > len(self._ids):
            raise BufferFormatError(f"token_ids: segment {index} ends at {end} of {len(self._ids)}")
        last = int(np.searchsorted(self._ends, end))
        if tokens and self._ends[last] != end:
            raise BufferFormatError(f"runs: none ends where segment {index} does")
        runs = self._runs[self._run : last + 1] if tokens else self._runs[:0]
        columns = {"token_ids": self._ids[self._token : end], **_spread(runs)}
        sampled = columns["origin"] == Origin.SAMPLED
        count = int(np.count_nonzero(sampled))
        given = self._logprobs[self._logprob : self._logprob + count]
        if len(given) != count:
            raise BufferFormatError(f"logprobs: segment {index} has fewer than tokens that were sampled")
        columns["logprobs"] = np.zeros(tokens, np.float32)
        columns["logprobs"][sampled] = given
        self._token, self._logprob, self._run = end, self._logprob + count, self._run + len(runs)
        if parent is not None:
            if known.tokens > len(parent):
                raise BufferFormatError(f"shared: segment {index} shares more than its parent has")
            columns = _joined(parent, known.tokens, columns)
        return {**columns, **self._experts_of(index, parent, known)}

    def finish(self) -> None:
        """Raise BufferFormatError where something is left over."""
        if (self._token, self._logprob) != (len(self._ids), len(self._logprobs)) or self._experts:
            raise BufferFormatError("tokens, logprobs or experts are left over after the last segment")

    def _experts_of(self, index: int, parent: Segment | None, known: Shared) -> dict[str, NDArray[Any]]:
        experts = self._experts.pop(f"{index}.experts", None)
        runs = self._experts.pop(f"{index}.experts_rows", None)
        if experts is None and runs is None and not known.experts:
            return {}
        if experts is None or runs is None:
            raise BufferFormatError(f"experts: segment {index} lacks them or their rows")
        rows = _rows(runs, len(experts) if experts.ndim else 0)
        if known.experts:
            if parent is None or parent.experts is None or parent.experts_rows is None:
                raise BufferFormatError(f"experts: segment {index} shares some, its parent has none")
            theirs = parent.experts[: known.experts]
            if len(theirs) != known.experts or theirs.shape[1:] != experts.shape[1:]:
                raise BufferFormatError(f"experts: segment {index} shares others than its parent has")
            if theirs.dtype != experts.dtype:
                raise BufferFormatError(f"experts: segment {index} has {experts.dtype}, its parent others")
            experts = np.concatenate((theirs, experts))
            rows = np.concatenate((parent.experts_rows[: known.experts], rows))
        return {"experts": experts, "experts_rows": rows}


def _spread(runs: _Runs) -> dict[str, NDArray[Any]]:
    """The columns that runs stand for. Raises BufferFormatError for a value that its column cannot hold."""
    lengths = runs[:, 0]
    columns: dict[str, NDArray[Any]] = {}
    for place, name in enumerate(RUN_COLUMNS, 1):
        values = runs[:, place].astype(COLUMNS[name])
        if not np.array_equal(values, runs[:, place]):
            raise BufferFormatError(f"{name}: a run's value does not fit {np.dtype(COLUMNS[name])}")
        columns[name] = np.repeat(values, lengths)
    starts = np.cumsum(lengths) - lengths
    since = np.arange(len(columns["offset"]), dtype=np.int32) - np.repeat(starts, lengths).astype(np.int32)
    columns["offset"] += since * (columns["origin"] == Origin.SAMPLED)
    return columns


def _rows(runs: NDArray[Any], total: int) -> NDArray[np.int32]:
    if runs.dtype != np.int32 or runs.ndim != 2 or runs.shape[1] != 2 or total > MAX_RUN_ENTRIES:
        raise BufferFormatError(f"experts_rows: {runs.dtype} {runs.shape}, not runs int32 [Q, 2]")
    check_lengths(runs[:, 1], total)
    starts, lengths = runs[:, 0], runs[:, 1]
    since = np.arange(total, dtype=np.int32) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    rows: NDArray[np.int32] = (np.repeat(starts, lengths) + since).astype(np.int32)
    return rows


def _joined(parent: Segment, tokens: int, own: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The parent's first tokens, masked, and then a segment's own."""
    columns = {name: np.concatenate((getattr(parent, name)[:tokens], own[name])) for name in COLUMNS}
    columns["loss_mask"][:tokens] = 0
    return columns
