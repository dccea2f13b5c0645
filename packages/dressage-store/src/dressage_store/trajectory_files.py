"""Published trajectories as files: written aside, renamed into place, read back checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dressage_segments import SegmentsError, Trajectory, trajectory_from_bytes

from dressage_store.errors import CorruptStoreError, NotFoundError, os_errors
from dressage_store.layout import Layout, read_file, replace_file
from dressage_store.ledger import Entry, State


def publish(path: Path, data: bytes, *, fsync: bool) -> None:
    """Put a whole file at ``path`` or none. Raises StoreFullError, StoreReadOnlyError, StorePathError."""
    with os_errors(path):
        replace_file(path, data, fsync=fsync)


def load(layout: Layout, session_id: str, generation: int) -> Trajectory:
    """One generation of a session. Raises NotFoundError; CorruptStoreError, also for another's file."""
    path = layout.trajectory(session_id, generation)
    try:
        with os_errors(path):
            data = read_file(path)
    except OSError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise NotFoundError(f"{path}: the trajectory is not kept any more") from error
        raise
    mend = "restore it from a copy, or ack it to drop it"
    try:
        found = trajectory_from_bytes(data)
    except SegmentsError as error:
        raise CorruptStoreError(f"{path}: {error}: {mend}") from error
    if (found.session_id, found.generation) != (session_id, generation):
        raise CorruptStoreError(
            f"{path}: holds generation {found.generation} of session {found.session_id!r}: {mend}"
        )
    return found


def pending_entry(trajectory: Trajectory, nbytes: int) -> Entry:
    """The index entry of a trajectory that was just published."""
    return Entry(
        trajectory.session_id,
        State.PENDING,
        trajectory.generation,
        trajectory.failure_class.value,
        trajectory.outcome,
        nbytes,
    )


def missing_entries(layout: Layout, known: dict[str, Entry]) -> list[Entry]:
    """Entries for trajectories that were renamed into place just before a crash kept the index from it.

    One that does not read is passed over: it keeps no other from recovery, and its session's log, where there
    is one, can publish it again. A log is set aside only after the index has its session: where it has not,
    the index was lost, and what was finished, and may have been read, is not offered again.
    """
    found: dict[str, Entry] = {}
    finished = {*layout.log_sessions(layout.retained)} - {*layout.log_sessions(layout.logs)} - known.keys()
    files = layout.trajectory_files()
    for path, (session_id, generation) in files.items():
        entry = known.get(session_id)
        newest = found.get(session_id, entry)
        if entry is not None and entry.state is not State.PENDING:
            continue
        if newest is not None and generation <= newest.generation:
            continue
        try:
            new = pending_entry(load(layout, session_id, generation), path.stat().st_size)
        except CorruptStoreError:
            continue
        found[session_id] = replace(new, state=State.ACKED) if session_id in finished else new
    dropped = finished - {session_id for session_id, _ in files.values()}
    return [*found.values(), *(Entry(name, State.DROPPED, 0, "", {}, 0) for name in sorted(dropped))]


def remove_leftovers(layout: Layout, known: dict[str, Entry], *, retain: bool) -> None:
    """Remove what a crash left: half-written files, other generations than the one that the index has (and
    the disk too: of a damaged index none is lost), and acked ones unless retained."""
    with os_errors(layout.root):
        for half in layout.half_files():
            half.unlink()
        for path, (session_id, generation) in layout.trajectory_files().items():
            entry = known.get(session_id)
            if entry is None:
                continue
            kept = entry.state is State.PENDING or (retain and entry.state is State.ACKED)
            if not kept or (generation != entry.generation and layout.trajectory(*_named(entry)).exists()):
                path.unlink()


def _named(entry: Entry) -> tuple[str, int]:
    return entry.session_id, entry.generation
