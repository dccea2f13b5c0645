"""What durability costs: the files store against bare writes of the same bytes."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from dressage_segments import (
    ROOT,
    FailureClass,
    Final,
    LogRecord,
    Trajectory,
    finalize,
    record_to_bytes,
    trajectory_to_bytes,
)
from dressage_segments.synthetic import SyntheticSession
from dressage_store import FilesStore, MemoryStore

from benchmarks._report import report

TURNS = 128
NEW = SAMPLED = 256
VOCABULARY = 150_000
ROUNDS = 2000
FINAL = Final(1, FailureClass.COMPLETED, {"reward": 1.0})


def grown(name: str) -> tuple[list[LogRecord], Trajectory]:
    """A 64K-token session's log and trajectory."""
    session, parent, draw = SyntheticSession(name), ROOT, np.random.default_rng(0)
    for number in range(TURNS):
        delta, output = (draw.integers(0, VOCABULARY, count, np.int32) for count in (NEW, SAMPLED))
        logprobs = -draw.exponential(0.5, SAMPLED).astype(np.float32)
        parent = session.turn(delta, output, parent=parent, keys=[f"{number:032x}"], logprobs=logprobs)
    return session.log, finalize(session.tree, FINAL)


def append_times(store: FilesStore | MemoryStore, log: list[LogRecord], count: int) -> list[float]:
    store.append("s", log[0])
    times = []
    for number in range(count):
        started = time.perf_counter()
        store.append("s", log[1 + number % TURNS])
        times.append(time.perf_counter() - started)
    return times


def bare_times(path: Path, log: list[LogRecord], count: int) -> list[float]:
    payloads = [record_to_bytes(record) for record in log]
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    times = []
    for number in range(count):
        started = time.perf_counter()
        os.write(descriptor, payloads[1 + number % TURNS])
        times.append(time.perf_counter() - started)
    os.close(descriptor)
    return times


def timed_ms(run: object, repeat: int = 9) -> float:
    assert callable(run)
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return 1e3 * statistics.median(times)


def publishing(root: Path) -> dict[str, float]:
    """Publish, read and acknowledge a 64K-token trajectory, and recover its log, against bare file work."""
    log, example = grown("example")
    wire = trajectory_to_bytes(example)
    stored = len(wire) + sum(len(record_to_bytes(record)) for record in log)
    names = [f"p{number}" for number in range(9)]
    sessions = {name: grown(name) for name in names}
    store = FilesStore(root)
    for name, (log, _) in sessions.items():
        for record in log:
            store.append(name, record)
    todo = iter(names)
    put = timed_ms(lambda: store.put(sessions[next(todo)][1]))
    bare = timed_ms(
        lambda: (root / "bare.tmp").write_bytes(wire) and (root / "bare.tmp").replace(root / "bare")
    )
    read = timed_ms(lambda: store.read("p0"))
    bare_read = timed_ms(lambda: (root / "bare").read_bytes())
    store.close()

    def recover() -> None:
        FilesStore(root).close()

    reopened = timed_ms(recover)
    store = FilesStore(root)
    todo = iter(names)
    acked = timed_ms(lambda: store.ack(next(todo), 1))
    store.close()
    return {
        "log_and_trajectory_bytes_per_token": round(stored / (TURNS * (NEW + SAMPLED)), 2),
        "put_64k_ms": round(put, 2),
        "put_over_bare_write": round(put / bare, 2),
        "read_64k_ms": round(read, 2),
        "read_over_bare_read": round(read / bare_read, 2),
        "ack_ms": round(acked, 2),
        "recover_64k_session_ms": round(reopened / len(names), 2),
    }


def main() -> dict[str, object]:
    log, _ = grown("s")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        with FilesStore(root / "files") as store:
            files = append_times(store, log, ROUNDS)
        with FilesStore(root / "synced", fsync=True) as store:
            synced = append_times(store, log, 100)
        memory = append_times(MemoryStore(), log, ROUNDS)
        bare = bare_times(root / "bare", log, ROUNDS)
        median = statistics.median
        results: dict[str, object] = {
            "append_per_s": round(1 / median(files)),
            "append_memory_per_s": round(1 / median(memory)),
            "append_fsync_per_s": round(1 / median(synced)),
            "bare_write_per_s": round(1 / median(bare)),
            "append_over_bare_write": round(median(files) / median(bare), 2),
            "append_last_over_first": round(median(files[-200:]) / median(files[:200]), 2),
            "log_bytes_per_token": round(
                sum(len(record_to_bytes(record)) for record in log) / (TURNS * (NEW + SAMPLED)), 2
            ),
            **publishing(root / "published"),
        }
    report("store", results)
    return results


if __name__ == "__main__":
    main()
