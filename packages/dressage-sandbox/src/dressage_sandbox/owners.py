"""Who made a sandbox, and what it left when its owner was killed.

An owner is a process: its pid, its start time and the machine's boot, so that a re-used pid is never taken
for it. Each sandbox has a record (a small JSON file) in a private folder of this user for as long as it
lives. ``reap`` removes what dead owners left and touches nothing of live ones.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import stat
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from .cgroups import kill_group
from .errors import SandboxStartFailed

__all__ = [
    "OVERDUE_S",
    "Owner",
    "Record",
    "Records",
    "boot_time",
    "default_folder",
    "group_name",
    "snapshot_name",
    "start_time",
    "sweep",
]

OVERDUE_S = 10.0
"""How long after a lease's end its owner may take to end it, before the reaper does."""
_CHOOSE = "choose another runtime_dir"


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, told apart from any later one with the same pid."""

    pid: int
    started: int
    """Clock ticks after boot, field 22 of /proc/<pid>/stat."""
    boot: str

    @classmethod
    def this_process(cls) -> Owner:
        """The calling process."""
        return cls(os.getpid(), start_time(os.getpid()) or 0, _boot_id())

    def alive(self) -> bool:
        """Whether this very process still runs."""
        return self.boot == _boot_id() and start_time(self.pid) == self.started


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
    parent = memory if memory.is_dir() and os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    return parent / f"dressage-{os.getuid()}"


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
        """Write or replace a record, whole."""
        part = self.folder / f"{record.id}.{record.owner.pid}-{record.owner.started}.part"
        for attempt in range(3):
            try:
                part.write_text(json.dumps(asdict(record)))
                break
            except FileNotFoundError:  # another provider of this user was the last one, and tidied up
                if attempt == 2:
                    raise
                self.prepare()
        part.replace(self.folder / f"{record.id}.json")

    def drop(self, sandbox_id: str) -> None:
        """Remove a record; absent is fine."""
        (self.folder / f"{sandbox_id}.json").unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove the folder if no sandbox of this user is left."""
        with contextlib.suppress(OSError):  # not empty, or gone
            self.folder.rmdir()

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
            if _remove_groups([Path(group) for group in record.cgroups]):
                self.drop(record.id)
                gone.append(record.id)
        for pattern in ("*.*-*.part", "snap-*.*-*.tar", ".snap-*.*-*.tar.*.part"):
            for file in self.folder.glob(pattern):
                owner = _owner_in(file.name)
                if owner is not None and not owner.alive():
                    file.unlink(missing_ok=True)
        return gone


def boot_time() -> float:
    """Seconds since the machine's boot, sleep included: one clock for all its processes, set by nobody."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _runs(record: Record) -> bool:
    return bool(record.pid) and start_time(record.pid) == record.started


def group_name(owner: Owner, sandbox_id: str) -> str:
    """Name of a sandbox's control group: it tells the owner, should the record be lost."""
    return f"dressage-{owner.pid}-{owner.started}-{sandbox_id}"


def snapshot_name(owner: Owner, snapshot_id: str) -> str:
    """Name of a snapshot's file: it tells the owner."""
    return f"{snapshot_id}.{owner.pid}-{owner.started}.tar"


def _owner_in(name: str) -> Owner | None:
    """The owner that a file's name tells."""
    found = re.search(r"\.(\d+)-(\d+)\.", name)
    return Owner(int(found[1]), int(found[2]), _boot_id()) if found else None


def sweep(parents: Iterable[Path]) -> list[Path]:
    """Remove empty control groups of dead owners, with or without a record; returns their folders."""
    gone = []
    boot = _boot_id()
    for parent in set(parents):
        for folder in parent.glob("dressage-*-*-sb-*"):
            pid, started = folder.name.split("-")[1:3]
            if not Owner(int(pid), int(started), boot).alive() and _try_rmdir(folder):
                gone.append(folder)
    return gone


def start_time(pid: int) -> int | None:
    """Start of a process in clock ticks after boot; None when there is none (a zombie is none)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _remove_groups(folders: list[Path]) -> bool:
    give_up = time.monotonic() + 2.0
    while True:
        kill_group(folders)
        folders = [folder for folder in folders if folder.exists() and not _try_rmdir(folder)]
        if not folders:
            return True
        if time.monotonic() > give_up:
            return False
        time.sleep(0.005)


def _try_rmdir(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
