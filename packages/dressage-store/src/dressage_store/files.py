"""The embedded default: a turn log and trajectories in one folder, safe against kill -9 at any point."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from dressage_segments import (
    LogRecord,
    SegmentsError,
    Trajectory,
    record_from_bytes,
    record_to_bytes,
    trajectory_from_bytes,
    trajectory_to_bytes,
)

from dressage_store.errors import (
    CorruptStoreError,
    NotFoundError,
    StoreClosedError,
    StoreFullError,
    os_errors,
)
from dressage_store.index import Index
from dressage_store.layout import TEMPORARY, Layout, WriterLock, refuse_write
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
from dressage_store.logfile import LogWriter, frame, scan, sync_folder

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
        self._mutex = threading.RLock()
        self._closed = False
        self._lock: WriterLock | None = None
        if read_only:
            self._layout.check_format()
        else:
            self._layout.create()
            self._lock = WriterLock(self._layout.lock)
        try:
            self._logs = LogWriter(max_open=max_open_files, fsync=fsync)
            self._index = Index(self._layout.index, read_only=read_only, fsync=fsync)
        except BaseException:
            self._release()
            raise
        self._log_bytes = self._trajectory_bytes = 0
        if not read_only:
            self._recover()

    # -- sink ---------------------------------------------------------------------------------------------

    def append(self, session_id: str, record: LogRecord) -> None:
        """Append a record with one write, whole or not at all: O(record).

        Raises SessionIdError, SessionExistsError, SessionFinishedError, NotFoundError, StoreFullError.
        """
        check_session_id(session_id)
        data = frame(record_to_bytes(record))
        with self._writing():
            path = self._layout.log(session_id)
            has_log = self._logs.length(path) is not None or path.exists()
            if not has_log or record.kind == "open":
                check_append(session_id, record.kind, has_log, self._index.get(session_id))
            self._check_quota(len(data))
            self._logs.append(path, data)
            self._log_bytes += len(data)

    def records(self, session_id: str) -> Iterator[LogRecord]:
        """The session's log in order, without a torn tail; nothing for a session without a log.

        A retained log is read too. Raises CorruptStoreError.
        """
        check_session_id(session_id)
        with self._using():
            data, path = self._read_log(session_id)
        for payload in scan(data, path).payloads:
            try:
                yield record_from_bytes(payload)
            except SegmentsError as error:
                raise CorruptStoreError(f"{path}: {error}") from error

    def sessions(self) -> list[str]:
        """Sessions that have a log, in name order: those to recover; retained ones only when read-only."""
        with self._using():
            names = self._layout.log_sessions(self._layout.logs)
            if self.read_only:
                names = sorted({*names, *self._layout.log_sessions(self._layout.retained)})
            return names

    def put(self, trajectory: Trajectory) -> None:
        """Publish by write and atomic rename. Raises GenerationError for a late write, StoreFullError."""
        session_id, generation = trajectory.session_id, trajectory.generation
        check_session_id(session_id)
        with self._writing():
            before = self._index.get(session_id)
            if not check_put(session_id, generation, before):
                return
            data = trajectory_to_bytes(trajectory)
            self._check_quota(len(data))
            self._publish(self._layout.trajectory(session_id, generation), data)
            self._trajectory_bytes += len(data)
            self._index.set(_pending_entry(trajectory, len(data)))
            if before is not None:
                self._remove_trajectory(before)

    def forget(self, session_id: str) -> None:
        """Drop the session's log, or set it aside where the store retains. Its id is never opened again."""
        check_session_id(session_id)
        with self._writing():
            path = self._layout.log(session_id)
            if not path.exists():
                return
            if self._index.get(session_id) is None:
                self._index.set(Entry(session_id, State.DROPPED, 0, "", {}, 0))
            self._logs.drop(path)
            with os_errors(path):
                if self._retain:
                    path.replace(self._layout.retained_log(session_id))
                else:
                    self._log_bytes -= path.stat().st_size
                    path.unlink()

    # -- source -------------------------------------------------------------------------------------------

    def pending(self) -> list[str]:
        """Published, un-acked sessions, oldest first."""
        with self._using():
            return [entry.session_id for entry in self._index.entries(State.PENDING)]

    def read(self, session_id: str) -> Trajectory:
        """The published trajectory. Raises NotFoundError when absent or acked, CorruptStoreError."""
        check_session_id(session_id)
        with self._using():
            return self._load(check_read(session_id, self._index.get(session_id)))

    def ack(self, session_id: str, generation: int) -> None:
        """Mark consumed, then delete trajectory and log (set aside where the store retains).

        A second ack is a no-op. Raises NotFoundError, GenerationError.
        """
        check_session_id(session_id)
        with self._writing():
            entry = self._index.get(session_id)
            if not check_ack(session_id, generation, entry) or entry is None:
                return
            self._index.set(replace(entry, state=State.ACKED))
            if not self._retain:
                self._remove_trajectory(entry)
            self.forget(session_id)

    # -- looking ------------------------------------------------------------------------------------------

    def inspect(self, session_id: str) -> Trajectory:
        """The trajectory whether acked or not, as long as it is kept. Raises NotFoundError."""
        check_session_id(session_id)
        with self._using():
            entry = self._index.get(session_id)
            if entry is None or entry.state is State.DROPPED:
                raise NotFoundError(f"session {session_id!r} has no trajectory")
            return self._load(entry)

    def entries(self) -> list[Entry]:
        """Every session that was published or dropped, oldest first, with its state and outcome."""
        with self._using():
            return self._index.entries()

    def usage(self) -> Usage:
        """Bytes held now, retained ones included."""
        with self._using():
            if self.read_only:
                self._measure()
            sessions = len(self._layout.log_sessions(self._layout.logs))
            pending = len(self._index.entries(State.PENDING))
            return Usage(self._log_bytes, self._trajectory_bytes, sessions, pending)

    def close(self) -> None:
        """Release files and the lock; later calls raise StoreClosedError. May be called again."""
        with self._mutex:
            if not self._closed:
                self._closed = True
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

    def _using(self) -> _Guard:
        return _Guard(self, writes=False)

    def _writing(self) -> _Guard:
        return _Guard(self, writes=True)

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _read_log(self, session_id: str) -> tuple[bytes, Path]:
        for path in (self._layout.log(session_id), self._layout.retained_log(session_id)):
            try:
                with os_errors(path):
                    return path.read_bytes(), path
            except OSError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
        return b"", self._layout.log(session_id)

    def _load(self, entry: Entry) -> Trajectory:
        path = self._layout.trajectory(entry.session_id, entry.generation)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise NotFoundError(f"{path}: the trajectory of session {entry.session_id!r} is gone") from None
        try:
            return trajectory_from_bytes(data)
        except SegmentsError as error:
            raise CorruptStoreError(f"{path}: {error}") from error

    def _publish(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(path.name + TEMPORARY)
        with os_errors(path):
            try:
                with temporary.open("wb") as file:
                    file.write(data)
                    if self._fsync:
                        file.flush()
                        os.fsync(file.fileno())
                temporary.replace(path)
                if self._fsync:
                    sync_folder(path.parent)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise

    def _remove_trajectory(self, entry: Entry) -> None:
        path = self._layout.trajectory(entry.session_id, entry.generation)
        with os_errors(path):
            path.unlink(missing_ok=True)
        self._trajectory_bytes -= entry.nbytes

    def _check_quota(self, more: int) -> None:
        if self._max_bytes is not None:
            held = self._log_bytes + self._trajectory_bytes
            if held + more > self._max_bytes:
                raise StoreFullError(
                    f"{self.root}: max_bytes is {self._max_bytes}, {held} held, {more} asked: ack or raise it"
                )

    def _measure(self) -> None:
        layout = self._layout
        with os_errors(self.root):
            logs = [*layout.logs.glob("*.log"), *layout.retained.glob("*.log")]
            self._log_bytes = sum(path.stat().st_size for path in logs)
            self._trajectory_bytes = sum(path.stat().st_size for path in layout.trajectory_files())

    def _recover(self) -> None:
        """Finish what a crash cut: half-written files, renames that the index missed, deletions to do."""
        try:
            with os_errors(self.root):
                for leftover in self._layout.trajectories.glob(f"*{TEMPORARY}"):
                    leftover.unlink()
            entries = {entry.session_id: entry for entry in self._index.entries()}
            self._reconcile_trajectories(entries)
            for session_id in self._layout.log_sessions(self._layout.logs):
                entry = entries.get(session_id)
                if entry is not None and entry.state is not State.PENDING:
                    self.forget(session_id)
                elif self._logs.repair(self._layout.log(session_id)) == 0:
                    self._layout.log(session_id).unlink()
                    self._logs.drop(self._layout.log(session_id))
            self._measure()
        except BaseException:
            self.close()
            raise

    def _reconcile_trajectories(self, entries: dict[str, Entry]) -> None:
        for path, (session_id, generation) in self._layout.trajectory_files().items():
            entry = entries.get(session_id)
            if entry is None or (entry.state is State.PENDING and generation > entry.generation):
                found = Entry(session_id, State.PENDING, generation, "", {}, path.stat().st_size)
                entries[session_id] = _pending_entry(self._load(found), found.nbytes)
                self._index.set(entries[session_id])
        for path, (session_id, generation) in self._layout.trajectory_files().items():
            entry = entries[session_id]
            current = generation == entry.generation
            if not current or (entry.state is not State.PENDING and not self._retain):
                path.unlink()


class _Guard:
    """Serialises threads and refuses what the store's state forbids."""

    __slots__ = ("_store", "_writes")

    def __init__(self, store: FilesStore, *, writes: bool) -> None:
        self._store = store
        self._writes = writes

    def __enter__(self) -> None:
        self._store._mutex.acquire()
        try:
            if self._store._closed:
                raise StoreClosedError(f"{self._store.root}: the store was closed")
            if self._writes and self._store.read_only:
                raise refuse_write(self._store.root)
        except BaseException:
            self._store._mutex.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._store._mutex.release()


def _pending_entry(trajectory: Trajectory, nbytes: int) -> Entry:
    return Entry(
        trajectory.session_id,
        State.PENDING,
        trajectory.generation,
        trajectory.failure_class,
        trajectory.outcome,
        nbytes,
    )
