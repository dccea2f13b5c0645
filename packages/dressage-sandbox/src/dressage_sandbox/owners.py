"""What is known of sandboxes from outside their owners, and the end of what killed owners left.

Each sandbox has a record (a small JSON file) in a private folder of this user for as long as it lives; its
name tells the owner. ``reap`` removes what dead owners left and touches nothing of live ones.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import stat
from dataclasses import asdict, dataclass
from pathlib import Path

from .engines import ContainerNotes
from .errors import SandboxStartFailed
from .groups import remove_groups
from .owner import Owner, boot_time, file_name, owner_of_file, start_time

__all__ = ["OVERDUE_S", "Record", "Records", "default_folder", "snapshot_name"]

OVERDUE_S = 10.0
"""How long after a lease's end its owner may take to end it, before the reaper does."""
_CHOOSE = "choose another runtime_dir"
_LEFTOVERS = ("*.*-*-*.part", "owner-*.*-*-*.open", "snap-*.*-*-*.tar", ".snap-*.*-*-*.tar.*.part")


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a live sandbox from outside its owner."""

    id: str
    owner: Owner
    label: str
    """The spec's ``owner``."""
    created: float
    """Unix time, seconds."""
    ttl_s: float
    cgroups: tuple[str, ...]
    expires: float = math.inf
    """End of its lease by the machine's own clock (``boot_time``), seconds."""
    pid: int = 0
    """Process 1 of the sandbox as the host numbers it; 0 before it is known."""
    started: int = 0


def default_folder() -> Path:
    """A folder of this user, in memory where there is such a place: a record costs a file twice a sandbox."""
    own = Path(f"/run/user/{os.getuid()}")
    if own.is_dir() and own.stat().st_uid == os.getuid():
        return own / "dressage"
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK):
        return memory / f"dressage-{os.getuid()}"
    import tempfile  # not for the reaper, which is to be small

    return Path(tempfile.gettempdir()) / f"dressage-{os.getuid()}"


def snapshot_name(owner: Owner, snapshot_id: str) -> str:
    """Name of a snapshot's file: it tells the owner."""
    return file_name(owner, snapshot_id, "tar")


class Records:
    """The records of this user's sandboxes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self) -> None:
        """Make the folder.

        Raises:
            SandboxStartFailed: it cannot be made, or belongs to someone else.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self.folder.lstat()
        except OSError as error:
            raise SandboxStartFailed(f"runtime folder {self.folder}: {error.strerror}; {_CHOOSE}") from error
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise SandboxStartFailed(f"runtime folder {self.folder} is not private to this user; {_CHOOSE}")

    def put(self, record: Record) -> None:
        """Write or replace a record, whole.

        Raises:
            SandboxStartFailed: it cannot be written.
        """
        part = self._file(record, "part")
        for attempt in range(3):
            try:
                part.write_text(json.dumps(asdict(record)))
                part.replace(self._file(record, "json"))
                return
            except OSError as error:
                # Absent: another provider of this user was the last one, and tidied up.
                if attempt == 2 or not isinstance(error, FileNotFoundError):
                    part.unlink(missing_ok=True)
                    raise SandboxStartFailed(
                        f"a record in {self.folder}: {error.strerror}; {_CHOOSE}"
                    ) from error
                self.prepare()

    def drop(self, record: Record) -> None:
        """Remove a record; absent is fine."""
        self._file(record, "json").unlink(missing_ok=True)

    def _file(self, record: Record, suffix: str) -> Path:
        return self.folder / file_name(record.owner, record.id, suffix)

    def tidy(self) -> bool:
        """Remove the folder if nothing of this user's sandboxes is left; whether it has gone."""
        try:
            self.folder.rmdir()
        except OSError:  # not empty, or a place that cannot go
            return not self.folder.exists()
        return True

    def all(self) -> list[Record]:
        """Every record, oldest first. One that is not whole is a leftover of a killed writer: removed."""
        records = []
        for path in self.folder.glob("*.json"):
            try:
                fields = json.loads(path.read_text())
                fields["owner"] = Owner(**fields["owner"])
                fields["cgroups"] = tuple(fields["cgroups"])
                records.append(Record(**fields))
            except FileNotFoundError:
                continue
            except (ValueError, TypeError, KeyError):
                path.unlink(missing_ok=True)
        return sorted(records, key=lambda record: record.created)

    def owners(self) -> set[Owner]:
        """Whose files are here, by their names alone; none where the folder is gone."""
        try:
            names = os.listdir(self.folder)  # noqa: PTH208 - names alone, of a folder that may hold thousands
        except FileNotFoundError:
            return set()
        return {owner for name in names if (owner := owner_of_file(name)) is not None}

    def reap(self) -> list[str]:
        """End and remove what dead owners left; returns the ids."""
        gone = []
        for record in self.all():
            if record.owner.alive():
                # Its owner ends it in time, unless that hangs or is stopped. What remains is the owner's.
                if boot_time() > record.expires + OVERDUE_S and _runs(record):
                    _kill(record.pid)
                continue
            if _runs(record):
                _kill(record.pid)
            if remove_groups(Path(group) for group in record.cgroups):
                self.drop(record)
                gone.append(record.id)
        for pattern in _LEFTOVERS:
            for file in self.folder.glob(pattern):
                owner = owner_of_file(file.name)
                if owner is not None and not owner.alive():
                    file.unlink(missing_ok=True)
        return gone + ContainerNotes(self.folder).reap()


def _runs(record: Record) -> bool:
    """Whether its process 1 lives. Numbers of another boot, or another pid namespace, tell nothing of it."""
    return record.owner.here and bool(record.pid) and start_time(record.pid) == record.started


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
