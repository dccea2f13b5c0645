"""The reaper: a process of its own that cleans up after owners that were killed, at once, unasked.

One watches a runtime folder, however many owners have sandboxes there; the lock that it holds on the folder
says that it does. It belongs to none of them: a session and a parent of its own, no open file, no terminal,
no variable of theirs. It sees an owner end by a pidfd, or by looking where the kernel has none, and ends by
itself as soon as nothing of any owner is in the folder.

It imports no more than it needs, from the beginning: it may outlive the installation that it came from.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import sys
import time
from pathlib import Path

from .groups import sweep
from .owner import Owner
from .owners import Records

__all__ = ["Reaper", "lock", "main"]

TICK_S = 1.0
"""How often it looks for new owners; the end of a known one is seen at once."""
STAY_S = 0.5
"""How long it stays at least: an owner's files may come a moment after its reaper."""
_OVERDUE_LOOK_S = 5.0
_LONGEST_WAIT_S = 60.0
_MOST_FAILURES = 12


def lock(folder: Path, patience_s: float = 0.0) -> int | None:
    """A descriptor that holds the folder's lock, or None where a reaper has it.

    Raises:
        OSError: the folder is not there, or cannot be locked.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    give_up = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= give_up:
                os.close(fd)
                return None
            time.sleep(0.005)
        except BaseException:
            os.close(fd)
            raise
        else:
            return fd


class Reaper:
    """Watches a folder whose lock it holds by ``fd``."""

    def __init__(self, folder: Path, fd: int) -> None:
        self._folder, self._fd = folder, fd
        self._records = Records(folder)
        self._parents: set[Path] = set()
        """Where control groups were seen."""
        self._watched: dict[Owner, int] = {}
        """The pidfd of each live owner; -1 where there is none."""
        self._failures = 0
        self._again_at = 0.0
        self._overdue_at = 0.0

    def run(self) -> None:
        """Until nothing is left to watch."""
        stay_until = time.monotonic() + STAY_S
        while self._is_still_there():
            owners = self._owners()
            now = time.monotonic()
            if not owners and now >= stay_until and self._leave():
                return
            self._clean({owner for owner in owners if not owner.alive()}, now)
            if self._failures > _MOST_FAILURES:
                return  # what cannot be removed is tried again by the next one
            live = {owner for owner in owners if owner.alive()}
            self._watch(live)
            if live or self._failures:
                self._wait(TICK_S)
            else:
                self._wait(max(0.0, stay_until - now))

    def _owners(self) -> set[Owner]:
        """Owners whose end can be seen from here."""
        return {owner for owner in self._records.owners() if owner.here}

    def _is_still_there(self) -> bool:
        """Whether the folder that is locked still has its name."""
        try:
            return os.path.samestat(os.fstat(self._fd), self._folder.stat())
        except FileNotFoundError:
            return False

    def _clean(self, dead: set[Owner], now: float) -> None:
        """Remove what dead owners left, and end what hanging ones hold beyond its time."""
        if dead and now >= self._again_at:
            self._parents |= {Path(group).parent for r in self._records.all() for group in r.cgroups}
            self._records.reap()
            sweep(self._parents)
            self._failures = self._failures + 1 if dead & self._owners() else 0
            self._again_at = now + min(_LONGEST_WAIT_S, 2.0**self._failures - 1)
        elif not dead:
            self._failures, self._again_at = 0, 0.0
            if now >= self._overdue_at:
                self._records.reap()
                self._overdue_at = now + _OVERDUE_LOOK_S

    def _watch(self, live: set[Owner]) -> None:
        for owner in set(self._watched) - live:
            fd = self._watched.pop(owner)
            if fd >= 0:
                os.close(fd)
        for owner in live - set(self._watched):
            fd = -1
            with contextlib.suppress(OSError):  # no such call, or ended in between: the next look sees it
                fd = os.pidfd_open(owner.pid)
            if fd >= 0 and not owner.alive():
                os.close(fd)
                fd = -1
            self._watched[owner] = fd

    def _wait(self, longest_s: float) -> None:
        """Until an owner ends, and for a look now and then."""
        ends = select.poll()
        for fd in self._watched.values():
            if fd >= 0:
                ends.register(fd, select.POLLIN)
        ends.poll(longest_s * 1000)

    def _leave(self) -> bool:
        """Give the folder up, with no moment in which an owner could think that it is watched."""
        if self._records.tidy():
            return True
        # It holds files of others. Owners write their files first, and look for the lock afterwards.
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        if not self._owners():
            return True
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another one watches now
            return True
        return False


def main(folder: str) -> None:
    """Watch this folder, as a process that belongs to nobody; returns in the caller's child at once.

    Prints the number of the process that watches, or nothing where another one does already.
    """
    fd = lock(Path(folder), patience_s=0.1)
    if fd is None:
        return
    os.setsid()
    pid = os.fork()
    if pid:
        print(pid)
        return
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    os.close(nowhere)
    try:
        Reaper(Path(folder), fd).run()
    finally:
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
