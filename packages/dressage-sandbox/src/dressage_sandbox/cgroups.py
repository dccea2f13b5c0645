"""Resource limits by control groups, v1 or v2, one group per sandbox, where this process may write them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import LimitNotEnforceable
from .groups import kill_group, write
from .owner import Owner, group_name
from .protocol import Limits
from .quota import Quota

__all__ = ["Cgroups", "detect", "oom_kills", "remove_group", "usage"]

_PERIOD_US = 100_000
_PATIENCE_S = 1.0
_SOCKETS = 4
"""Bytes that wait in sockets of TCP and UDP may take one in so many of the memory, where they are a limit of
their own (v1, which does not count them otherwise)."""


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Where groups can be made: controller (memory, pids, cpu) -> parent folder; ``version`` 0 is nowhere."""

    version: int
    parents: dict[str, Path]

    def enforces(self, controller: str) -> bool:
        """Whether a group holds this limit here."""
        return controller in self.parents

    def folders(self, name: str, limits: Limits) -> tuple[Path, ...]:
        """The folders that a group of this name has.

        None of the cpu controller without a limit for it: who enters one waits for the kernel (8 ms were seen
        on Linux 6.18), half as long as all else of a start takes.
        """
        parents = [p for c, p in self.parents.items() if c != "cpu" or limits.cpus is not None]
        return tuple(dict.fromkeys(parent / name for parent in parents))

    def make(self, name: str, limits: Limits) -> tuple[Path, ...]:
        """Make a group with these limits; on failure nothing is left.

        Raises:
            LimitNotEnforceable: ``cpus`` is set and no cpu controller can be written.
            OSError: the kernel refused.
        """
        if limits.cpus is not None and not self.enforces("cpu"):
            raise LimitNotEnforceable("limits.cpus: no cpu control group can be written here; leave it None")
        folders = self.folders(name, limits)
        try:
            for folder in folders:
                folder.mkdir()
            for path, value in self._settings(name, limits):
                write(path, value)
        except BaseException:
            for folder in folders:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise
        return folders

    def enter(self, folders: Iterable[Path], pid: int) -> None:
        """Move a process of one thread into the group."""
        for folder in folders:
            # In v1 "tasks" moves one thread without the kernel's global lock; v2 has no such file.
            write(folder / ("tasks" if self.version == 1 else "cgroup.procs"), str(pid))

    def quota(self, name: str, limits: Limits) -> Quota | None:
        """The CPU limit of a group of this name, where it has one."""
        if limits.cpus is None or not self.enforces("cpu"):
            return None
        group, quota = self.parents["cpu"] / name, str(max(1000, int(limits.cpus * _PERIOD_US)))
        if self.version == 2:
            return Quota(group / "cpu.max", f"{quota} {_PERIOD_US}", f"max {_PERIOD_US}")
        return Quota(group / "cpu.cfs_quota_us", quota, "-1")

    def _settings(self, name: str, limits: Limits) -> Iterator[tuple[Path, str]]:
        if "memory" in self.parents:
            group, value = self.parents["memory"] / name, str(limits.memory_bytes)
            limit, swap = (
                ("memory.max", ("memory.swap.max", "0"))
                if self.version == 2
                else ("memory.limit_in_bytes", ("memory.memsw.limit_in_bytes", value))
            )
            yield group / limit, value
            if (group / swap[0]).exists():
                yield group / swap[0], swap[1]
            if (sockets := group / "memory.kmem.tcp.limit_in_bytes").exists():
                yield sockets, str(limits.memory_bytes // _SOCKETS)
        if "pids" in self.parents:
            yield self.parents["pids"] / name / "pids.max", str(limits.pids)
        if (quota := self.quota(name, limits)) is not None:
            if self.version == 1:
                yield quota.file.with_name("cpu.cfs_period_us"), str(_PERIOD_US)
            yield quota.file, quota.held


def detect(mountinfo: Path = Path("/proc/self/mountinfo"), own: Path = Path("/proc/self/cgroup")) -> Cgroups:
    """What can be written here, found by trying: make a group, move a process in, remove it."""
    try:
        mounts, groups = mountinfo.read_text(), own.read_text()
    except OSError:
        return Cgroups(0, {})
    v2 = {c: p for p in _v2_parents(mounts, groups) for c in _controllers(p)}
    if "memory" in v2 or "pids" in v2:
        found = Cgroups(2, {c: p for c, p in v2.items() if c in ("memory", "pids", "cpu")})
        if _works(found):
            return found
    v1 = _v1_parents(mounts, groups)
    return Cgroups(1, {c: p for c, p in v1.items() if _works(Cgroups(1, {c: p}))})


def usage(folders: Iterable[Path]) -> tuple[int | None, int | None]:
    """Bytes and processes of a group now; None for what no controller counts here."""
    found: dict[str, int] = {}
    for folder in folders:
        for name in ("memory.current", "memory.usage_in_bytes", "pids.current"):
            with contextlib.suppress(OSError, ValueError):  # not this controller's
                found[name.partition(".")[0]] = int((folder / name).read_text())
    return found.get("memory"), found.get("pids")


def oom_kills(folders: Iterable[Path]) -> int:
    """How many processes of a group the kernel has killed for want of memory."""
    for folder in folders:
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError, ValueError):  # not this controller's, or not this version's
                words = (folder / name).read_text().split()
                return int(words[words.index("oom_kill") + 1])
    return 0


async def remove_group(folders: Iterable[Path]) -> list[Path]:
    """Remove the group, waiting a moment for its dead to leave; returns the folders that stayed."""
    left = list(folders)
    give_up = asyncio.get_running_loop().time() + _PATIENCE_S
    while left:
        left = [folder for folder in left if not _rmdir(folder)]
        if not left or asyncio.get_running_loop().time() > give_up:
            break
        kill_group(left)
        await asyncio.sleep(0.002)
    return left


def _rmdir(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        raise
    return True


def _controllers(parent: Path) -> list[str]:
    """Controllers that ``parent`` hands on to its children, enabling them where that is allowed."""
    try:
        available = (parent / "cgroup.controllers").read_text().split()
        missing = [c for c in ("memory", "pids", "cpu") if c in available]
        with contextlib.suppress(OSError):  # not ours to change, or it holds processes itself
            write(parent / "cgroup.subtree_control", " ".join(f"+{c}" for c in missing))
        return (parent / "cgroup.subtree_control").read_text().split()
    except OSError:
        return []


def _v2_parents(mounts: str, groups: str) -> list[Path]:
    """Our own v2 group's parent and our own group: a delegated unit can have siblings or children."""
    point = next((f[4] for f in _mounts(mounts) if f[f.index("-") + 1] == "cgroup2"), None)
    path = next((line[3:] for line in groups.splitlines() if line.startswith("0::")), None)
    if point is None or path is None:
        return []
    own = Path(point + path)
    candidates = [own] if path == "/" else [own.parent, own]
    return [p for p in candidates if os.access(p, os.W_OK)]


def _v1_parents(mounts: str, groups: str) -> dict[str, Path]:
    own = {c: path for _, cs, path in (ln.split(":", 2) for ln in groups.splitlines()) for c in cs.split(",")}
    found: dict[str, Path] = {}
    for fields in _mounts(mounts):
        if fields[fields.index("-") + 1] != "cgroup":
            continue
        for controller in {"memory", "pids", "cpu"} & set(fields[-1].split(",")) & set(own):
            # In a container the mount may begin below the hierarchy's root.
            root, path = fields[3], own[controller]
            inside = path[len(root) :] if root != "/" and path.startswith(root) else path
            parent = Path(fields[4] + inside)
            if os.access(parent, os.W_OK):
                found[controller] = parent
    return found


def _mounts(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if " - " in line]


def _works(cgroups: Cgroups) -> bool:
    """Whether a real process can be put in a group here."""
    if not cgroups.parents:
        return False
    # Named as a sandbox's, so that one whose prober is killed is swept; and another one each time.
    name = group_name(Owner.this_process(), f"sb-probe-{secrets.token_hex(4)}")
    try:
        folders = cgroups.make(name, Limits(cpus=1.0 if cgroups.enforces("cpu") else None))
    except OSError:
        return False
    process = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env={})
    try:
        cgroups.enter(folders, process.pid)
        works = True
    except OSError:
        works = False
    finally:
        process.kill()
        process.communicate()
        for folder in folders:
            with contextlib.suppress(OSError):
                folder.rmdir()
    return works
