"""Rebuilding a session from its turn log, after a crash or for a check."""

from __future__ import annotations

from collections.abc import Iterable

from dressage_segments.errors import BufferFormatError
from dressage_segments.protocols import LogRecord
from dressage_segments.records import (
    first_mark_from_record,
    info_from_record,
    mark_from_record,
    turn_from_record,
)
from dressage_segments.tree import TrajectoryTree


def tree_from_records(records: Iterable[LogRecord]) -> TrajectoryTree:
    """The tree of one session's log. Records of kinds other than open, turn and mark are passed over.

    Raises BufferFormatError when the log does not start with ``open``, and whatever
    :meth:`TrajectoryTree.add` raises for a turn that does not fit.
    """
    tree: TrajectoryTree | None = None
    for record in records:
        if tree is None:
            tree = TrajectoryTree(info_from_record(record))
        elif record.kind == "turn":
            turn = turn_from_record(record)
            tree.add(turn)
            first = first_mark_from_record(record)
            if first is not None:
                tree.mark(turn.index, first)
        elif record.kind == "mark":
            tree.mark(*mark_from_record(record))
    if tree is None:
        raise BufferFormatError("the log is empty: a session's log starts with an 'open' record")
    return tree
