"""``dressage doctor``: whether the default path works on this machine, and what to do where it does not."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import import_module, metadata
from pathlib import Path

from dressage_recipes.local.scratch import PREFIX

GIB = 1 << 30
NEEDED_MEMORY = 2 * GIB
NEEDED_DISK = 2 * GIB
PACKAGES = (
    "dressage-blackbox-server",
    "dressage-paddock",
    "dressage-proxy",
    "dressage-recipes",
    "dressage-sandbox",
    "dressage-segments",
    "dressage-store",
    "dressage-tito",
)


class Level(StrEnum):
    """How bad a finding is. Only ``FAIL`` stops the default path."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Row:
    """One finding and, where something is wrong, its fix."""

    check: str
    level: Level
    finding: str
    fix: str = ""


def examine(folder: Path) -> list[Row]:
    """Every check, in the order in which a newcomer needs them. ``folder``: where runs would go."""
    checks: list[Callable[[], Iterable[Row]]] = [
        _python,
        _packages,
        _torch,
        _sandbox,
        lambda: _memory(Path("/proc/meminfo")),
        lambda: _disk(folder),
        _loopback,
        lambda: _leftovers(Path("/proc"), os.getuid()),
    ]
    return [row for check in checks for row in check()]


def passes(rows: Iterable[Row]) -> bool:
    """Whether the default path works."""
    return all(row.level is not Level.FAIL for row in rows)


def to_json(rows: Iterable[Row]) -> dict[str, object]:
    """What ``--json`` prints."""
    found = list(rows)
    return {"ok": passes(found), "checks": [asdict(row) for row in found]}


def describe(rows: Iterable[Row]) -> list[str]:
    """One line a finding, its fix beneath it."""
    found = list(rows)
    width = max(len(row.check) for row in found)
    lines = []
    for row in found:
        lines.append(f"{row.level.value:4}  {row.check:{width}}  {row.finding}")
        if row.fix:
            lines.append(f"      {'':{width}}  fix: {row.fix}")
    lines.append(
        "doctor: the default path works here"
        if passes(found)
        else "doctor: the default path does NOT work here"
    )
    return lines


def _python() -> Iterable[Row]:
    version = platform.python_version()
    if platform.system() != "Linux":
        yield Row("system", Level.FAIL, f"{platform.system()} has no bubblewrap", "use Linux, or a Linux VM")
    if sys.version_info >= (3, 14):
        yield Row("python", Level.WARN, f"{version} is newer than what is tested", "3.11 to 3.13 are tested")
    else:
        yield Row("python", Level.OK, version)


def _packages() -> Iterable[Row]:
    versions, broken = [], []
    for name in PACKAGES:
        try:
            import_module(name.replace("-", "_"))
            versions.append(f"{name.removeprefix('dressage-')} {metadata.version(name)}")
        except (ImportError, metadata.PackageNotFoundError) as error:
            broken.append(Row("packages", Level.FAIL, f"{name}: {error}", "make clean setup"))
    yield from broken or [Row("packages", Level.OK, ", ".join(versions))]


def _torch() -> Iterable[Row]:
    try:
        torch = import_module("torch")
    except (ImportError, OSError) as error:
        yield Row("torch", Level.FAIL, f"does not import: {error}", "make clean setup")
        return
    build = "CPU build" if torch.version.cuda is None else f"CUDA {torch.version.cuda} build"
    fix = "" if torch.version.cuda is None else "nothing is wrong; a CPU build would be 4 GB smaller"
    level = Level.OK if torch.version.cuda is None else Level.WARN
    yield Row("torch", level, f"{torch.__version__}, {build}, {os.cpu_count()} cores", fix)


def _sandbox() -> Iterable[Row]:
    """What dressage-sandbox finds by trying: a real sandbox is the only proof that user namespaces work."""
    try:
        from dressage_sandbox import SandboxError, checks
    except ImportError as error:
        return [Row("sandbox", Level.FAIL, f"dressage-sandbox does not import: {error}", "make clean setup")]
    try:
        found = asyncio.run(checks.examine())
    except SandboxError as error:
        return [Row("sandbox", Level.FAIL, str(error), "see docs/troubleshooting.md, and run doctor again")]
    return [Row(row.name, Level(row.level.value), row.detail, row.fix) for row in found]


def _memory(meminfo: Path) -> Iterable[Row]:
    fields = dict(
        line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines() if ":" in line
    )
    available = int(fields["MemAvailable"].split()[0]) * 1024
    enough = available >= NEEDED_MEMORY
    fix = "" if enough else "close other programs: a run says its peak in summary.json (peak_rss_mib)"
    yield Row("memory", Level.OK if enough else Level.FAIL, f"{available / GIB:.1f} GiB available", fix)


def _disk(folder: Path) -> Iterable[Row]:
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if not os.access(existing, os.W_OK):
        yield Row("disk", Level.FAIL, f"{existing} cannot be written", "pass --out DIR, or change folder")
    elif free < NEEDED_DISK:
        yield Row(
            "disk", Level.WARN, f"{free / GIB:.1f} GiB free under {existing}", "free some, or pass --out"
        )
    else:
        yield Row("disk", Level.OK, f"{free / GIB:.0f} GiB free under {existing}")


def _loopback() -> Iterable[Row]:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(5)
            with socket.create_connection(server.getsockname(), timeout=5):
                yield Row("loopback", Level.OK, "a server on 127.0.0.1 can be reached")
    except OSError as error:
        fix = "bring the loopback interface up (ip link set lo up) and let local ports be opened"
        yield Row("loopback", Level.FAIL, f"127.0.0.1: {error}", fix)


def _leftovers(proc: Path, uid: int) -> Iterable[Row]:
    """Processes of earlier runs whose parent is gone."""
    orphans = [pid for pid, command in _own_commands(proc, uid) if _is_orphan(proc, pid, command)]
    if orphans:
        pids = " ".join(map(str, orphans))
        yield Row("processes", Level.WARN, f"{len(orphans)} processes of an ended run", f"kill {pids}")
    else:
        yield Row("processes", Level.OK, "no process of an earlier run is left")


def _own_commands(proc: Path, uid: int) -> Iterable[tuple[int, str]]:
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if entry.stat().st_uid == uid:
                yield (
                    int(entry.name),
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"),
                )
        except OSError:
            continue  # it ended meanwhile


def _is_orphan(proc: Path, pid: int, command: str) -> bool:
    """Whether a run started it and is gone. A proxy that somebody keeps as a service has no parent either,
    and a run that is itself process 1, of a container, is every such process's parent."""
    of_a_run = "dressage_recipes.local" in command
    of_a_run |= "dressage_proxy.cli serve" in command and PREFIX in command  # its key is in the run's folder
    if not of_a_run:
        return False
    try:
        stat = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        first = (proc / "1" / "cmdline").read_bytes()
    except OSError:
        return False
    return int(stat.rpartition(")")[2].split()[1]) == 1 and b"dressage" not in first
