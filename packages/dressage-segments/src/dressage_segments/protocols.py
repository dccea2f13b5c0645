"""The seams between who records trajectories (the proxy), who keeps them (a store) and who trains on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dressage_segments.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One entry of a session's turn log.

    ``kind``: ``open`` (session opened), ``turn`` (a committed :class:`Turn`), ``mark`` (a later fact of a
    turn: delivered, undelivered, superseded), ``final`` (finalised), ``deleted``. ``meta`` is JSON.
    """

    kind: str
    meta: Mapping[str, Any]
    arrays: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)


@runtime_checkable
class SegmentSink(Protocol):
    """Where the recorder writes. Every method returns only once the data survives kill -9 of the process."""

    def append(self, session_id: str, record: LogRecord) -> None:
        """Append to the session's log, whole or not at all. The first record is ``open``, once per id."""

    def records(self, session_id: str) -> Iterator[LogRecord]:
        """The session's log in order; a torn tail from a crash is dropped."""

    def sessions(self) -> list[str]:
        """Sessions that have a log."""

    def put(self, trajectory: Trajectory) -> None:
        """Publish a valid trajectory atomically. Same session and generation again: no-op."""

    def forget(self, session_id: str) -> None:
        """Drop the session's log (after ack or delete) unless the store retains."""

    def close(self) -> None:
        """Release files and locks."""


@runtime_checkable
class SegmentSource(Protocol):
    """Where the trainer reads. Reading removes nothing; only ``ack`` does (each trajectory is read once)."""

    def pending(self) -> list[str]:
        """Session ids of published, un-acked trajectories, oldest first."""

    def read(self, session_id: str) -> Trajectory:
        """The published trajectory; raises the store's NotFound when absent or acked."""

    def ack(self, session_id: str, generation: int) -> None:
        """Mark consumed and forget the log. A wrong generation is refused; a second ack is a no-op."""
