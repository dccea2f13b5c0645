"""The end of a control group, for whoever has no event loop: a reaper, an interpreter at its exit."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from .owner import owner_of_group

__all__ = ["kill_group", "remove_groups", "sweep", "write"]

_PATIENCE_S = 2.0
_CPU_LIMITS = (("cpu.max", "max"), ("cpu.cfs_quota_us", "-1"))


def write(path: Path, value: str) -> None:
    """One write, which is how the kernel takes a setting."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def kill_group(folders: Iterable[Path]) -> None:
    """SIGKILL whatever is still in the group, which may take the CPU time that it dies of."""
    for folder in folders:
        for name, free in _CPU_LIMITS:
            with contextlib.suppress(OSError):  # not this controller's, or not this version's
                write(folder / name, free)
        with contextlib.suppress(OSError):  # absent in v1 and before Linux 5.14
            write(folder / "cgroup.kill", "1")
        try:
            pids = (folder / "cgroup.procs").read_text().split()
        except OSError:  # gone already
            continue
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def remove_groups(folders: Iterable[Path], patience_s: float = _PATIENCE_S) -> bool:
    """End and remove a group, waiting a moment for its dead to leave; whether it has gone. Blocks."""
    left = list(folders)
    give_up = time.monotonic() + patience_s
    while True:
        kill_group(left)
        left = [folder for folder in left if folder.exists() and not _try_rmdir(folder)]
        if not left:
            return True
        if time.monotonic() > give_up:
            return False
        time.sleep(0.005)


def sweep(parents: Iterable[Path]) -> list[Path]:
    """Remove empty control groups of dead owners, with or without a record; returns their folders."""
    gone = []
    for parent in set(parents):
        for folder in parent.glob("dressage-*-sb-*"):
            owner = owner_of_group(folder.name)
            if owner is not None and not owner.alive() and _try_rmdir(folder):
                gone.append(folder)
    return gone


def _try_rmdir(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
