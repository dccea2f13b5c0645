"""Sandboxes: start, warm lease, command and file, beside a bare fork + exec and a bare bubblewrap.

The bare ones are measured in the same run, in turns with ours, so that a busy machine slows both.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from dressage_sandbox import BubblewrapProvider, BubblewrapSandbox, Limits, PooledProvider, SandboxSpec
from dressage_sandbox.bwrap import find_bubblewrap

from benchmarks._report import report

ROUNDS, BURST, EXECS = 60, 64, 200
MB = os.urandom(1 << 20)


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {f"p{n}": round(cuts[n - 1] * 1e3, 2) for n in (50, 95, 99)}


def bare(command: Sequence[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, env={}, check=True)
    return time.perf_counter() - started


def bare_bubblewrap() -> list[str]:
    words = [str(find_bubblewrap().path), "--unshare-all", "--unshare-user", "--disable-userns", "--as-pid-1"]
    words += ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for name in ("bin", "lib", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            words += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            words += ["--ro-bind", str(path), str(path)]
    return [*words, "/usr/bin/true"]


async def timed(call: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await call()
    return time.perf_counter() - started


async def cold(provider: BubblewrapProvider) -> dict[str, object]:
    """One at a time, then a burst; CPU time is that of all processes taken together."""
    ours, theirs, plain = [], [], []
    command = bare_bubblewrap()
    for _ in range(ROUNDS):
        started = time.perf_counter()
        sandbox = await provider.create(SandboxSpec())
        ours.append(time.perf_counter() - started)
        await sandbox.terminate()
        theirs.append(bare(command))
        plain.append(bare(["/usr/bin/true"]))
    sixteen = await burst_of(provider, 16)
    before = os.times()
    started = time.perf_counter()
    burst = await asyncio.gather(*[provider.create(SandboxSpec()) for _ in range(BURST)])
    seconds = time.perf_counter() - started
    agents = sum(cpu_seconds(sandbox.pid) for sandbox in burst)
    ended = await timed(lambda: asyncio.gather(*[sandbox.terminate() for sandbox in burst]))
    after = os.times()
    own = after.user + after.system - before.user - before.system
    return {
        "cold_ms": percentiles(ours),
        "cold_16_ms": sixteen,
        "cold_64_s": round(seconds, 3),
        "terminate_64_s": round(ended, 3),
        "cpu_ms_per_create": {"inside": round(agents / BURST * 1e3, 2), "host": round(own / BURST * 1e3, 2)},
        "bare_bwrap_ms": percentiles(theirs),
        "bare_fork_exec_ms": percentiles(plain),
        "cold_over_bare_bwrap": round(statistics.median(ours) / statistics.median(theirs), 2),
    }


async def burst_of(provider: BubblewrapProvider, count: int) -> dict[str, float]:
    """How long each of so many waits when all are asked for at once."""
    waits: list[float] = []

    async def one() -> BubblewrapSandbox:
        started = time.perf_counter()
        sandbox = await provider.create(SandboxSpec())
        waits.append(time.perf_counter() - started)
        return sandbox

    for _ in range(4):
        burst = await asyncio.gather(*[one() for _ in range(count)])
        await asyncio.gather(*[sandbox.terminate() for sandbox in burst])
    return percentiles(waits)


async def forks(provider: BubblewrapProvider) -> dict[str, object]:
    """A work folder of 100 MB in 400 files: kept once, and given to new sandboxes."""
    spec = SandboxSpec(limits=Limits(disk_bytes=256 << 20, memory_bytes=1 << 30))
    sandbox = await provider.create(spec)
    await sandbox.run("for i in $(seq 400); do head -c 250000 /dev/urandom >f$i; done", timeout_s=120)
    snapshots, starts, whole = [], [], []
    for _ in range(8):
        started = time.perf_counter()
        snapshot = await sandbox.snapshot()
        kept = time.perf_counter()
        fork = await provider.create(replace(spec, snapshot=snapshot.id))
        await fork.read("f400", max_bytes=1)
        done = time.perf_counter()
        snapshots.append(kept - started)
        starts.append(done - kept)
        whole.append(done - started)
        await fork.terminate()
        await provider.delete_snapshot(snapshot.id)
    await sandbox.terminate()
    median = statistics.median
    return {
        "fork_100mb_ms": round(median(whole) * 1e3, 1),
        "fork_100mb_parts_ms": {
            "snapshot": round(median(snapshots) * 1e3, 1),
            "start_from_it": round(median(starts) * 1e3, 1),
        },
    }


def cpu_seconds(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


async def warm(provider: BubblewrapProvider) -> dict[str, object]:
    """A sandbox that waits in a pool, and commands and files in one that runs."""
    pool = PooledProvider(provider, SandboxSpec(), 8)
    leases = []
    for _ in range(ROUNDS // 8 + 1):
        await pool.fill()
        for _ in range(8):
            started = time.perf_counter()
            sandbox = await pool.create(SandboxSpec())
            leases.append(time.perf_counter() - started)
            await sandbox.terminate()
    sandbox = await provider.create(SandboxSpec())
    execs, plain, writes, reads = [], [], [], []
    for _ in range(EXECS):
        execs.append(await timed(lambda: sandbox.run(["/usr/bin/true"])))
        plain.append(bare(["/usr/bin/true"]))
    for _ in range(40):
        writes.append(await timed(lambda: sandbox.write("file", MB)))
        reads.append(await timed(lambda: sandbox.read("file", max_bytes=1 << 20)))
    hits = pool.hits
    await pool.close()
    return {
        "warm_lease_ms": percentiles(leases),
        "warm_hits": f"{hits} of {len(leases)}",
        "exec_ms": percentiles(execs),
        "exec_over_fork_exec": round(statistics.median(execs) / statistics.median(plain), 2),
        "file_1mb_ms": {
            "write": round(statistics.median(writes) * 1e3, 2),
            "read": round(statistics.median(reads) * 1e3, 2),
        },
    }


async def measure() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        provider = BubblewrapProvider(runtime_dir=Path(folder, "runtime"))
        capabilities = await provider.probe()
        results = await cold(provider)
        results |= await forks(provider)
        results |= await warm(provider)
    enforced = {"memory": capabilities.memory, "pids": capabilities.pids, "cpu": capabilities.cpu}
    return {**results, "enforced_by": enforced}


def main() -> None:
    report("sandbox", asyncio.run(measure()))


if __name__ == "__main__":
    main()
