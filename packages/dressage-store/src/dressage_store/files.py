"""The embedded default: a turn log and trajectories in one folder, safe against kill -9 at any point."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from dressage_segments import LogRecord, Trajectory, record_to_bytes, trajectory_to_bytes

from dressage_store.errors import (
    CorruptStoreError,
    NotFoundError,
    StoreError,
    StoreFullError,
    os_errors,
)
from dressage_store.gate import Gate
from dressage_store.index import Index
from dressage_store.layout import Layout, WriterLock
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
from dressage_store.log_reader import read_records
from dressage_store.logfile import LogWriter, frame
from dressage_store.reserve import Reserve
from dressage_store.trajectory_files import load, missing_entries, pending_entry, publish, remove_leftovers

_MAX_OPEN = 128


class FilesStore:
    """SegmentSink and SegmentSource in a folder, with one writing process.

    ``append`` and ``put`` return once the data survives kill -9 of this process; with ``fsync`` also a power
    cut. ``retain`` keeps acked trajectories and forgotten logs for audits. ``read_only`` opens without the
    lock, also while a writer lives: it changes nothing, and lists and reads what was retained as well.
    ``max_bytes`` bounds what the store holds; a write above it is refused whole. Threads may share it.

    Raises StorePathError, StoreReadOnlyError, StoreLockedError, StoreVersionError, CorruptStoreError.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        retain: bool = False,
        fsync: bool = False,
        read_only: bool = False,
        max_bytes: int | None = None,
        max_open_files: int = _MAX_OPEN,
    ) -> None:
        self.root = Path(root)
        self.read_only = read_only
        self._layout = Layout(self.root)
        self._retain = retain
        self._fsync = fsync
        self._max_bytes = max_bytes
        self._gate = Gate(self.root, read_only=read_only)
        self._reserve = Reserve(self._layout.reserve)
        self._lock: WriterLock | None = None
        if read_only:
            self._layout.check_format()
        else:
            self._layout.create(fsync=fsync)
            self._lock = WriterLock(self._layout.lock)
        self._logs = LogWriter(self._layout.log, max_open=max_open_files, fsync=fsync)
        self._log_bytes = self._trajectory_bytes = 0
        try:
            if not read_only:
                self._layout.adopt_format(fsync=fsync)
            self._index = self._reserve.spend_on(
                lambda: Index(self._layout.index, read_only=read_only, fsync=fsync)
            )
        except BaseException:
            self._release()
            raise
        if not read_only:
            try:
                self._recover()
            except BaseException:
                self.close()
                raise

    # -- sink ---------------------------------------------------------------------------------------------

    def append(self, session_id: str, record: LogRecord) -> None:
        """Append a record with one write, whole or not at all: O(record).

        Raises SessionIdError, SessionExistsError, SessionFinishedError, NotFoundError, StoreFullError.
        """
        check_session_id(session_id)
        data = frame(record_to_bytes(record))
        with self._gate.writing():
            has_log = self._logs.length(session_id) is not None or self._layout.log(session_id).exists()
            if not has_log or record.kind == "open":
                check_append(session_id, record.kind, has_log, self._index.get(session_id))
            self._check_quota(len(data))
            self._logs.append(session_id, data)
            self._log_bytes += len(data)

    def records(self, session_id: str) -> Iterator[LogRecord]:
        """The session's log in order, without a torn tail; nothing for a session without a log.

        A retained log is read too. Raises CorruptStoreError.
        """
        check_session_id(session_id)
        with self._gate.reading():
            return read_records(self._layout, session_id)

    def sessions(self) -> list[str]:
        """Sessions that have a log, in name order: those to recover; retained ones only when read-only."""
        with self._gate.reading():
            names = self._layout.log_sessions(self._layout.logs)
            if self.read_only:
                names = sorted({*names, *self._layout.log_sessions(self._layout.retained)})
            return names

    def put(self, trajectory: Trajectory) -> None:
        """Publish by write and atomic rename.

        Raises GenerationError for a late write, StoreFullError, and InvalidFieldError for a trajectory that
        breaks its contract: what is published can be read.
        """
        session_id, generation = trajectory.session_id, trajectory.generation
        check_session_id(session_id)
        with self._gate.writing():
            before = self._index.get(session_id)
            if not check_put(session_id, generation, before):
                return
            data = trajectory_to_bytes(trajectory)
            self._check_quota(len(data))
            publish(self._layout.trajectory(session_id, generation), data, fsync=self._fsync)
            try:
                self._index.set(pending_entry(trajectory, len(data)))
            except StoreError:
                self._layout.trajectory(session_id, generation).unlink(missing_ok=True)
                raise
            self._trajectory_bytes += len(data)
            if before is not None:
                self._remove_trajectory(before)

    def forget(self, session_id: str) -> None:
        """Drop the session's log, or set it aside where the store retains. Its id is never opened again."""
        check_session_id(session_id)
        with self._gate.writing():
            path = self._layout.log(session_id)
            if not path.exists():
                return
            if self._index.get(session_id) is None:
                self._note(Entry(session_id, State.DROPPED, 0, "", {}, 0))
            self._logs.drop(session_id)
            with os_errors(path):
                if self._retain:
                    path.replace(self._layout.retained_log(session_id))
                else:
                    self._log_bytes -= path.stat().st_size
                    path.unlink()

    # -- source -------------------------------------------------------------------------------------------

    def pending(self) -> list[str]:
        """Published, un-acked sessions, oldest first."""
        with self._gate.reading():
            return [entry.session_id for entry in self._index.entries(State.PENDING)]

    def read(self, session_id: str) -> Trajectory:
        """The published trajectory. Raises NotFoundError when absent or acked, CorruptStoreError."""
        check_session_id(session_id)
        with self._gate.reading():
            entry = check_read(session_id, self._index.get(session_id))
            return load(self._layout, session_id, entry.generation)

    def ack(self, session_id: str, generation: int) -> None:
        """Mark consumed, then delete trajectory and log (set aside where the store retains).

        A second ack is a no-op. Raises NotFoundError, GenerationError.
        """
        check_session_id(session_id)
        with self._gate.writing():
            entry = self._index.get(session_id)
            if not check_ack(session_id, generation, entry) or entry is None:
                return
            self._note(replace(entry, state=State.ACKED))
            if not self._retain:
                self._remove_trajectory(entry)
            self.forget(session_id)
            self._reserve.hold()

    # -- looking ------------------------------------------------------------------------------------------

    def inspect(self, session_id: str) -> Trajectory:
        """The trajectory whether acked or not, as long as it is kept. Raises NotFoundError."""
        check_session_id(session_id)
        with self._gate.reading():
            entry = self._index.get(session_id)
            if entry is None or entry.state is State.DROPPED:
                raise NotFoundError(f"session {session_id!r} has no trajectory")
            return load(self._layout, session_id, entry.generation)

    def entries(self) -> list[Entry]:
        """Every session that was published or dropped, oldest first, with its state and outcome."""
        with self._gate.reading():
            return self._index.entries()

    def usage(self) -> Usage:
        """Bytes held now, retained ones included."""
        with self._gate.reading():
            if self.read_only:
                self._measure()
            sessions = len(self._layout.log_sessions(self._layout.logs))
            pending = len(self._index.entries(State.PENDING))
            return Usage(self._log_bytes, self._trajectory_bytes, sessions, pending)

    def close(self) -> None:
        """Release files and the lock; later calls raise StoreClosedError. May be called again."""
        with self._gate.closing() as first:
            if first:
                self._logs.close()
                self._index.close()
                self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside -------------------------------------------------------------------------------------------

    def _note(self, entry: Entry) -> None:
        """In the index; on a full disk too, since what follows makes room."""
        self._reserve.spend_on(lambda: self._index.set(entry))

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _remove_trajectory(self, entry: Entry) -> None:
        path = self._layout.trajectory(entry.session_id, entry.generation)
        with os_errors(path):
            path.unlink(missing_ok=True)
        self._trajectory_bytes -= entry.nbytes

    def _check_quota(self, more: int) -> None:
        if self._max_bytes is not None:
            held = self._log_bytes + self._trajectory_bytes
            if held + more > self._max_bytes:
                way = (
                    "an ack frees nothing where retain=True: raise it" if self._retain else "ack or raise it"
                )
                raise StoreFullError(
                    f"{self.root}: max_bytes is {self._max_bytes}, {held} held, {more} asked: {way}"
                )

    def _measure(self) -> None:
        layout = self._layout
        with os_errors(self.root):
            logs = [
                *map(layout.log, layout.log_sessions(layout.logs)),
                *map(layout.retained_log, layout.log_sessions(layout.retained)),
            ]
            self._log_bytes = sum(path.stat().st_size for path in logs)
            self._trajectory_bytes = sum(path.stat().st_size for path in layout.trajectory_files())

    def _recover(self) -> None:
        """Finish what a crash cut: torn records, renames that the index missed, deletions to do."""
        layout = self._layout
        for entry in missing_entries(layout, {entry.session_id: entry for entry in self._index.entries()}):
            self._index.set(entry)
        entries = {entry.session_id: entry for entry in self._index.entries()}
        remove_leftovers(layout, entries, retain=self._retain)
        for session_id in layout.log_sessions(layout.logs):
            known = entries.get(session_id)
            if known is not None and known.state is not State.PENDING:
                self.forget(session_id)
            else:
                self._repair_log(session_id)
        self._measure()
        self._reserve.hold()

    def _repair_log(self, session_id: str) -> None:
        try:
            whole = self._logs.repair(session_id)
        except CorruptStoreError:
            return  # One damaged session keeps no other from recovery: using it raises again.
        if whole == 0:
            self._logs.drop(session_id)
            self._layout.log(session_id).unlink()
