"""Published trajectories as files: written aside, renamed into place, read back checked."""

from __future__ import annotations

from pathlib import Path

from dressage_segments import SegmentsError, Trajectory, trajectory_from_bytes

from dressage_store.errors import CorruptStoreError, NotFoundError, os_errors
from dressage_store.layout import TEMPORARY, Layout, replace_file
from dressage_store.ledger import Entry, State


def publish(path: Path, data: bytes, *, fsync: bool) -> None:
    """Put a whole file at ``path`` or none. Raises StoreFullError, StoreReadOnlyError, StorePathError."""
    with os_errors(path):
        replace_file(path, data, fsync=fsync)


def load(path: Path) -> Trajectory:
    """The trajectory at ``path``. Raises NotFoundError, CorruptStoreError."""
    try:
        with os_errors(path):
            data = path.read_bytes()
    except OSError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise NotFoundError(f"{path}: the trajectory is not kept any more") from error
        raise
    try:
        return trajectory_from_bytes(data)
    except SegmentsError as error:
        raise CorruptStoreError(f"{path}: {error}: restore it from a copy, or ack it to drop it") from error


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
    is one, can publish it again.
    """
    found: dict[str, Entry] = {}
    for path, (session_id, generation) in layout.trajectory_files().items():
        entry = found.get(session_id) or known.get(session_id)
        if entry is None or (entry.state is State.PENDING and generation > entry.generation):
            try:
                found[session_id] = pending_entry(load(path), path.stat().st_size)
            except CorruptStoreError:
                continue
    return list(found.values())


def remove_leftovers(layout: Layout, known: dict[str, Entry], *, retain: bool) -> None:
    """Remove what a crash left: half-written files, older generations, and acked ones unless retained."""
    with os_errors(layout.root):
        for half in layout.trajectories.glob(f"*{TEMPORARY}"):
            half.unlink()
        for path, (session_id, generation) in layout.trajectory_files().items():
            entry = known.get(session_id)
            if entry is None:
                continue
            kept = entry.state is State.PENDING or (retain and entry.state is State.ACKED)
            if generation != entry.generation or not kept:
                path.unlink()
