"""The folder of a files store: its names, its format mark, and the lock of its one writer."""

from __future__ import annotations

import fcntl
import os
import re
import stat
from pathlib import Path

from dressage_store.errors import (
    StoreLockedError,
    StorePathError,
    StoreVersionError,
    os_errors,
)
from dressage_store.ledger import is_session_id

FORMAT = "dressage.store/2"
READ_FORMATS = (FORMAT, "dressage.store/1")
"""The first, with all columns as they are, is still read. Whoever opens such a store for writing marks it as
of the second, since what is written from then on is."""
TEMPORARY = ".tmp"
_LOG = ".log"
_TRAJECTORY = ".safetensors"
_GENERATION = re.compile(r"0|[1-9][0-9]{0,18}")
"""As :meth:`Layout.trajectory` writes it."""


class Layout:
    """Where everything is under ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.format = root / "FORMAT"
        self.lock = root / "lock"
        self.index = root / "index.sqlite"
        self.reserve = root / "reserve"
        self.logs = root / "log"
        self.retained = root / "retained"
        self.trajectories = root / "trajectories"

    def log(self, session_id: str) -> Path:
        """The session's live turn log."""
        return self.logs / f"{session_id}{_LOG}"

    def retained_log(self, session_id: str) -> Path:
        """Where the log is kept after it was forgotten, in a store that retains."""
        return self.retained / f"{session_id}{_LOG}"

    def trajectory(self, session_id: str, generation: int) -> Path:
        """The published trajectory of one generation."""
        return self.trajectories / f"{session_id}.{generation}{_TRAJECTORY}"

    def trajectory_files(self) -> dict[Path, tuple[str, int]]:
        """Every whole trajectory file with its session and generation, in name order."""
        found = {}
        for name in _files(self.trajectories, _TRAJECTORY):
            session_id, _, generation = name.removesuffix(_TRAJECTORY).rpartition(".")
            if is_session_id(session_id) and _GENERATION.fullmatch(generation):
                found[self.trajectories / name] = (session_id, int(generation))
        return found

    def half_files(self) -> list[Path]:
        """What a crash left of trajectories that were being written."""
        return [self.trajectories / name for name in _files(self.trajectories, _TRAJECTORY + TEMPORARY)]

    def log_sessions(self, folder: Path) -> list[str]:
        """Sessions that have a log file in ``folder``, in name order."""
        names = (name.removesuffix(_LOG) for name in _files(folder, _LOG))
        return sorted(filter(is_session_id, names))

    def create(self, *, fsync: bool) -> None:
        """Make the folders of a new store, or finish what a crash left half made.

        Raises StorePathError for a path that is no folder or holds other things, StoreReadOnlyError,
        StoreFullError, StoreVersionError.
        """
        with os_errors(self.root):
            if self.root.exists() and not self.root.is_dir():
                raise StorePathError(f"{self.root}: is not a folder: give the folder of a store")
            self.root.mkdir(parents=True, exist_ok=True)
            if not self.format.exists():
                others = [p.name for p in self.root.iterdir() if p.name not in (self.lock.name, "FORMAT.tmp")]
                if others:
                    raise StorePathError(
                        f"{self.root}: holds {others[0]!r} but no FORMAT, so it is not a store: "
                        "give an empty or a new folder"
                    )
                self._write_format(fsync=fsync)
            self.check_format()
            for folder in (self.logs, self.retained, self.trajectories):
                folder.mkdir(exist_ok=True)

    def adopt_format(self, *, fsync: bool) -> None:
        """Mark a store of an earlier format as of this one; only the one writer may. Raises StoreFullError,
        StoreReadOnlyError."""
        if self.check_format() != FORMAT:
            with os_errors(self.root):
                self._write_format(fsync=fsync)

    def check_format(self) -> str:
        """The store's format. Raises StoreVersionError for one that is not read here, StorePathError if it is
        no store."""
        with os_errors(self.root):
            if not self.root.is_dir():
                raise StorePathError(f"{self.root}: is not a folder: give the folder of a store")
            if not self.format.is_file():
                raise StorePathError(
                    f"{self.root}: has no FORMAT, so it is not a store: give a store's folder"
                )
            found = self.format.read_text(errors="replace").strip()
        if found not in READ_FORMATS:
            raise StoreVersionError(
                f"{self.root}: is of format {found[:64]!r}, this version reads {' and '.join(READ_FORMATS)}: "
                "use the dressage-store version that wrote it, or give a new folder"
            )
        return found

    def _write_format(self, *, fsync: bool) -> None:
        replace_file(self.format, (FORMAT + "\n").encode(), fsync=fsync)


def _files(folder: Path, suffix: str) -> list[str]:
    """Names of the files in ``folder`` that end so. What people put there (copies, folders) is not the
    store's: callers look at the names."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.name.endswith(suffix) and entry.is_file())
    except FileNotFoundError:
        return []


def read_file(path: Path) -> bytes:
    """A whole file. One that is no regular file (a FIFO, a link to a device) might be waited for or have no
    end: it is refused. Raises OSError, StorePathError."""
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise StorePathError(f"{path}: is no regular file: restore it from a copy, or remove it")
        return file.read()


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def replace_file(path: Path, data: bytes, *, fsync: bool) -> None:
    """Put a whole file at ``path`` or leave what is there. Raises OSError."""
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with temporary.open("wb") as file:
            file.write(data)
            if fsync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if fsync:
            sync_folder(path.parent)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make a created or renamed entry of ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class WriterLock:
    """Held by the one process that writes; the system frees it when that process dies, however it dies."""

    def __init__(self, path: Path) -> None:
        with os_errors(path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = os.read(self._descriptor, 32).decode(errors="replace").strip() or "unknown"
                os.close(self._descriptor)
                raise StoreLockedError(
                    f"{path.parent}: process {holder} writes to this store: stop it, "
                    "open with read_only=True, or give another folder"
                ) from error
            except OSError:
                os.close(self._descriptor)
                raise
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Let another process write."""
        os.close(self._descriptor)
