"""A process as the owner of things that must not outlive it, and the names that tell whose something is."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Owner", "boot_time", "file_name", "group_name", "owner_of_file", "owner_of_group", "start_time"]

_OF_FILE = re.compile(r"\.(\d+)-(\d+)-(\d+)\.")
_OF_GROUP = re.compile(r"dressage-(\d+)-(\d+)-(\d+)-sb-")


def boot_time() -> float:
    """Seconds since the machine's boot, sleep included: one clock for all its processes, set by nobody."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def start_time(pid: int) -> int | None:
    """Start of a process in clock ticks after boot; None when there is none (a zombie is none)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_space() -> int:
    """The number of this process's pid namespace: pids of another one mean other processes here."""
    return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 - a link that leads to no path


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, told apart from any later one with the same pid."""

    pid: int
    started: int
    """Clock ticks after boot, field 22 of /proc/<pid>/stat."""
    boot: str
    space: int = field(default_factory=_pid_space)

    @classmethod
    def this_process(cls) -> Owner:
        """The calling process."""
        return cls(os.getpid(), start_time(os.getpid()) or 0, _boot_id())

    @property
    def here(self) -> bool:
        """Whether its pid means the same process to this one: same boot, same pid namespace."""
        return self.boot == _boot_id() and self.space == _pid_space()

    def alive(self) -> bool:
        """Whether this very process still runs. One of another pid namespace is not known to have ended."""
        if self.here:
            return start_time(self.pid) == self.started
        return self.boot == _boot_id()

    @property
    def text(self) -> str:
        """As it stands in names."""
        return f"{self.pid}-{self.started}-{self.space}"


def group_name(owner: Owner, sandbox_id: str) -> str:
    """Name of a sandbox's control group: it tells the owner, should the record be lost."""
    return f"dressage-{owner.text}-{sandbox_id}"


def file_name(owner: Owner, name: str, suffix: str) -> str:
    """Name of a record's, a snapshot's or an unfinished file: it tells the owner."""
    return f"{name}.{owner.text}.{suffix}"


def owner_of_file(name: str) -> Owner | None:
    """The owner that a file's name tells, which is of this boot or else gone anyway."""
    found = _OF_FILE.search(name)
    return Owner(int(found[1]), int(found[2]), _boot_id(), int(found[3])) if found else None


def owner_of_group(name: str) -> Owner | None:
    """The owner that a control group's name tells."""
    found = _OF_GROUP.match(name)
    return Owner(int(found[1]), int(found[2]), _boot_id(), int(found[3])) if found else None
