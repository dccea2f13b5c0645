"""The proof that nothing outlives its owner: leases whose owners are killed at random moments of their work.

::

    python -m dressage_sandbox.orphans --leases 1000

Each worker process makes leases, runs commands and services, takes snapshots and exposes ports, and is killed
with SIGKILL at a random moment. A live peer holds a sandbox in the same runtime folder all the time, which
must come to no harm. Nobody calls a reaper: the one that the owners share is a process of its own. What is
left ten seconds after the last kill is counted, and in the end the reaper itself. Prints a row for each kind,
and exits with 1 if anything is left.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import random
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .cgroups import detect
from .owner import Owner, owner_of_file, owner_of_group
from .protocol import SandboxSpec
from .provider import BubblewrapProvider

__all__ = ["Left", "main", "prove"]

_SUBREAPER = 36
_SETTLE_S = 10.0
_LEASES_A_WORKER = 5
_WORKER = """
import asyncio, os, sys
from pathlib import Path
from dressage_sandbox import BubblewrapProvider, SandboxSpec

async def lease(provider):
    os.write(1, b"L\\n")
    box = await provider.create(SandboxSpec(owner="orphan", relay="127.0.0.1:9", egress=("127.0.0.1:9",)))
    await box.start("setsid env -i sleep 600 & sleep 600")
    await box.run("(setsid sleep 600 &) >/dev/null 2>&1; echo x >file")
    endpoint = await box.expose(8000)
    os.write(1, b"P" + endpoint.url.rpartition(":")[2].encode() + b"\\n")
    await box.snapshot()
    await box.run(["sleep", "0.05"])
    await box.terminate()

async def main():
    provider = BubblewrapProvider(runtime_dir=Path(sys.argv[1]))
    await provider.probe()
    os.write(1, b"R\\n")
    await asyncio.gather(*[lease(provider) for _ in range(int(sys.argv[2]))])
    await asyncio.sleep(60)

asyncio.run(main())
"""


@dataclass(frozen=True, slots=True)
class Left:
    """What was counted when the reaper had its time; each of the lists must be empty."""

    leases: int
    owners: int
    processes: list[str]
    mounts: list[str]
    cgroups: list[str]
    files: list[str]
    sockets: list[str]
    harmed: list[str]
    """Harm done to the live peer."""

    @property
    def clean(self) -> bool:
        """Whether nothing is left."""
        return not (
            self.processes or self.mounts or self.cgroups or self.files or self.sockets or self.harmed
        )


async def prove(leases: int, seed: int = 0, workers: int = 4) -> Left:
    """Make and orphan at least so many leases, and look. For a process of its own: orphans come to it."""
    if ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed")
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="dressage-orphans-") as scratch:
        folder = Path(scratch, "runtime")
        mounts = _mounts()
        peer = BubblewrapProvider(runtime_dir=folder)
        witness = await peer.create(SandboxSpec(owner="peer"))
        await witness.write("file", b"mine")
        known = {os.getpid(), *_below(os.getpid())}
        crowd = _Crowd(folder, chance, workers)
        await asyncio.to_thread(crowd.drive, leases)
        left = await asyncio.to_thread(_look, folder, witness.id, known, mounts, crowd)
        harmed = []
        try:
            if await witness.read("file") != b"mine":
                harmed.append("the peer's file has changed")
            await peer.close()
        except Exception as error:  # noqa: BLE001 - whatever happened to the peer is the finding
            harmed.append(f"the peer's sandbox: {error}")
        left.harmed.extend(harmed)
        await asyncio.to_thread(_until, lambda: not _strangers(known - {os.getpid()}) and not folder.exists())
        left.processes.extend(await asyncio.to_thread(_strangers, known))
        left.files.extend(await asyncio.to_thread(_names, folder))
        return left


class _Crowd:
    """Workers, a few at a time, each killed at a random moment after it is ready."""

    def __init__(self, folder: Path, chance: random.Random, most: int) -> None:
        self.folder, self.chance, self.most = folder, chance, most
        self.leases = self.owners = 0
        self.ports: set[int] = set()
        self._running: dict[int, tuple[subprocess.Popen[bytes], bytearray, float]] = {}

    def drive(self, leases: int) -> None:
        """Until so many leases were begun, and every worker is dead."""
        while self.leases < leases or self._running:
            while self.leases < leases and len(self._running) < self.most:
                self._start()
            soonest = min((due for _, _, due in self._running.values()), default=0.0)
            fds = list(self._running)
            ready, _, _ = select.select(fds, [], [], max(0.0, min(1.0, soonest - time.monotonic())))
            for fd in ready:
                self._hear(fd)
            for fd, (worker, _, due) in list(self._running.items()):
                if time.monotonic() >= due:
                    self._kill(fd, worker)

    def _start(self) -> None:
        command = [sys.executable, "-c", _WORKER, str(self.folder), str(_LEASES_A_WORKER)]
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        assert worker.stdout is not None
        self._running[worker.stdout.fileno()] = (worker, bytearray(), time.monotonic() + 60)
        self.owners += 1

    def _hear(self, fd: int) -> None:
        worker, buffer, due = self._running[fd]
        data = os.read(fd, 4096)
        if not data and worker.poll() not in (None, -signal.SIGKILL):
            raise RuntimeError(f"a worker ended by itself, with {worker.poll()}: see above")
        buffer += data
        while b"\n" in buffer:
            line, _, rest = bytes(buffer).partition(b"\n")
            buffer[:] = rest
            if line == b"R":
                due = time.monotonic() + self.chance.uniform(0, 0.5)
            elif line == b"L":
                self.leases += 1
            else:
                self.ports.add(int(line[1:]))
        self._running[fd] = (worker, buffer, due)

    def _kill(self, fd: int, worker: subprocess.Popen[bytes]) -> None:
        worker.kill()
        worker.wait()
        self._hear(fd)
        del self._running[fd]
        assert worker.stdout is not None
        worker.stdout.close()


def _look(folder: Path, witness: str, known: set[int], mounts: list[str], crowd: _Crowd) -> Left:
    # The kernel takes a moment to bury what was killed, and the reaper to see it.
    _until(lambda: _find(folder, witness, known, mounts, crowd).clean)
    return _find(folder, witness, known, mounts, crowd)


def _until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + _SETTLE_S
    while not condition() and time.monotonic() < give_up:
        time.sleep(0.05)


def _find(folder: Path, witness: str, known: set[int], mounts: list[str], crowd: _Crowd) -> Left:
    groups = {str(g) for parent in detect().parents.values() for g in _groups_of(parent)}
    return Left(
        leases=crowd.leases,
        owners=crowd.owners,
        processes=[line for line in _strangers(known) if "dressage_sandbox.reaper" not in line],
        mounts=[line for line in _mounts() if line not in mounts],
        cgroups=sorted(group for group in groups if witness not in group),
        files=[str(path) for path in folder.iterdir() if owner_of_file(path.name) != Owner.this_process()],
        sockets=[f"127.0.0.1:{port}" for port in sorted(crowd.ports) if _listens(port)]
        + [str(path) for path in folder.rglob("*") if stat.S_ISSOCK(path.lstat().st_mode)],
        harmed=[],
    )


def _names(folder: Path) -> list[str]:
    return [str(path) for path in folder.glob("*")]


def _groups_of(parent: Path) -> Iterator[Path]:
    """Groups of dead owners, whoever they were."""
    for group in parent.glob("dressage-*-sb-*"):
        owner = owner_of_group(group.name)
        if owner is not None and not owner.alive():
            yield group


def _strangers(known: set[int]) -> list[str]:
    """Processes below this one that it did not know before; the dead among them are buried."""
    with suppress(ChildProcessError):
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if dead is None or dead.si_pid in known:
                break
            os.waitpid(dead.si_pid, 0)
    return [f"{pid} {_command(pid)}" for pid in _below(os.getpid()) if pid not in known]


def _below(pid: int) -> list[int]:
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *_below(int(child))]
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")[:400]
    except OSError:
        return "(gone)"


def _mounts() -> list[str]:
    return [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 1 if anything is left."""
    parser = argparse.ArgumentParser(prog="python -m dressage_sandbox.orphans", description=__doc__)
    parser.add_argument("--leases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=4, help="owners at the same time")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    started = time.monotonic()
    left = asyncio.run(prove(options.leases, options.seed, options.workers))
    kinds = {name: getattr(left, name) for name in ("processes", "mounts", "cgroups", "files", "sockets")}
    kinds["harm to a live peer"] = left.harmed
    if options.json:
        print(json.dumps({"leases": left.leases, "owners": left.owners, **kinds}))
    else:
        seconds = time.monotonic() - started
        print(f"{left.leases} leases of {left.owners} owners, each killed; {seconds:.0f} s")
        for kind, found in kinds.items():
            print(f"  {kind:20} {len(found)} left" + "".join(f"\n      {item}" for item in found[:20]))
    return 0 if left.clean else 1


if __name__ == "__main__":
    sys.exit(main())
