"""The store that lives and dies with its process: for tests, and for loops that need no recovery."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from dressage_segments import (
    LogRecord,
    Trajectory,
    record_from_bytes,
    record_to_bytes,
    trajectory_from_bytes,
    trajectory_to_bytes,
)

from dressage_store.errors import StoreClosedError, StoreFullError
from dressage_store.ledger import (
    Entry,
    State,
    Usage,
    check_ack,
    check_append,
    check_put,
    check_read,
    check_session_id,
)


class MemoryStore:
    """SegmentSink and SegmentSource over dictionaries. Records are kept as bytes, so that what is read back
    is what was written, whatever the caller does to its arrays."""

    def __init__(self, *, max_bytes: int | None = None) -> None:
        self._logs: dict[str, list[bytes]] = {}
        self._trajectories: dict[str, bytes] = {}
        self._entries: dict[str, Entry] = {}
        self._max_bytes = max_bytes
        self._log_bytes = 0
        self._closed = False

    def append(self, session_id: str, record: LogRecord) -> None:
        """See :class:`dressage_segments.SegmentSink`. Raises this package's errors only."""
        self._check_open()
        check_session_id(session_id)
        check_append(session_id, record.kind, session_id in self._logs, self._entries.get(session_id))
        payload = record_to_bytes(record)
        self._check_quota(len(payload))
        self._logs.setdefault(session_id, []).append(payload)
        self._log_bytes += len(payload)

    def records(self, session_id: str) -> Iterator[LogRecord]:
        """The session's log in order; nothing for a session without one."""
        self._check_open()
        check_session_id(session_id)
        return iter([record_from_bytes(payload) for payload in self._logs.get(session_id, ())])

    def sessions(self) -> list[str]:
        """Sessions that have a log, in name order."""
        self._check_open()
        return sorted(self._logs)

    def put(self, trajectory: Trajectory) -> None:
        """Publish a trajectory. Raises GenerationError for a late write, StoreFullError above the quota."""
        self._check_open()
        session_id = trajectory.session_id
        check_session_id(session_id)
        if not check_put(session_id, trajectory.generation, self._entries.get(session_id)):
            return
        payload = trajectory_to_bytes(trajectory)
        self._check_quota(len(payload))
        self._trajectories[session_id] = payload
        self._entries[session_id] = Entry(
            session_id,
            State.PENDING,
            trajectory.generation,
            trajectory.failure_class.value,
            trajectory.outcome,
            len(payload),
        )

    def forget(self, session_id: str) -> None:
        """Drop the session's log; its id cannot be opened again."""
        self._check_open()
        check_session_id(session_id)
        log = self._logs.pop(session_id, None)
        if log is None:
            return
        self._log_bytes -= sum(map(len, log))
        self._entries.setdefault(session_id, Entry(session_id, State.DROPPED, 0, "", {}, 0))

    def pending(self) -> list[str]:
        """Published, un-acked sessions, oldest first."""
        self._check_open()
        return [name for name, entry in self._entries.items() if entry.state is State.PENDING]

    def read(self, session_id: str) -> Trajectory:
        """The published trajectory. Raises NotFoundError when absent or acked."""
        self._check_open()
        check_session_id(session_id)
        check_read(session_id, self._entries.get(session_id))
        return trajectory_from_bytes(self._trajectories[session_id])

    def ack(self, session_id: str, generation: int) -> None:
        """Mark consumed and forget trajectory and log. Raises NotFoundError or GenerationError."""
        self._check_open()
        check_session_id(session_id)
        entry = self._entries.get(session_id)
        if not check_ack(session_id, generation, entry) or entry is None:
            return
        self._entries[session_id] = Entry(
            session_id, State.ACKED, generation, entry.failure_class, entry.outcome, 0
        )
        del self._trajectories[session_id]
        self.forget(session_id)

    def usage(self) -> Usage:
        """Bytes held now."""
        self._check_open()
        held = sum(map(len, self._trajectories.values()))
        return Usage(self._log_bytes, held, len(self._logs), len(self._trajectories))

    def close(self) -> None:
        """Forget everything; later calls raise StoreClosedError."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the store was closed")

    def _check_quota(self, more: int) -> None:
        if self._max_bytes is not None and self.usage().total_bytes + more > self._max_bytes:
            raise StoreFullError(f"max_bytes: {self._max_bytes} reached, {more} more asked: ack or raise it")
