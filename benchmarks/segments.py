"""What recording, exporting, packing and proving a 64K-token session costs.

The session: 128 turns of 256 new and 256 sampled tokens, one branch, one retry in eight.
"""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
from dressage_segments import (
    ROOT,
    FailureClass,
    Final,
    Trajectory,
    audit,
    final_to_record,
    finalize,
    record_to_bytes,
    segment_from_bytes,
    segment_to_bytes,
    trajectory_from_bytes,
    trajectory_to_bytes,
)
from dressage_segments.synthetic import SyntheticSession

from benchmarks._report import report

TURNS = 128
NEW = SAMPLED = 256
FINAL = Final(1, FailureClass.COMPLETED, {"reward": 1.0})


def seconds(run: Callable[[], object], repeat: int = 15) -> float:
    """The median time of a call."""
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def grow(turns: int, *, retries: bool = False) -> tuple[SyntheticSession, list[float]]:
    """A session, and the time that each turn took to record."""
    session, parent, times = SyntheticSession(), ROOT, []
    draw = np.random.default_rng(0)
    for number in range(turns):
        delta, output = (draw.integers(0, 150_000, count).astype(np.int32) for count in (NEW, SAMPLED))
        keys = (f"{number:032x}",)
        if retries and number % 8 == 7:
            session.turn(delta, output, parent=parent, keys=keys, reply=f"{number:031x}r")
        started = time.perf_counter()
        parent = session.turn(delta, output, parent=parent, keys=keys, reply=f"{number:031x}a")
        times.append(time.perf_counter() - started)
    return session, times


def held_bytes(turns: int) -> int:
    """What the tree of a session keeps, its log not counted."""
    tracemalloc.start()
    try:
        session, _ = grow(turns)
        session.log.clear()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def match_us(session: SyntheticSession) -> float:
    """One look-up of a request that extends the whole session."""
    keys = []
    for number in range(TURNS):
        keys += [f"{number:032x}", f"{number:031x}a"]
    return 1e6 * seconds(lambda: session.tree.match([*keys, "new"], "tools"), 200)


def packing(trajectory: Trajectory) -> dict[str, float]:
    """Bytes of the largest segment against a plain copy of as many bytes."""
    segment = max(trajectory.segments, key=len)
    wire = segment_to_bytes(segment)
    copy = seconds(lambda: bytearray(wire), 50)
    packed = seconds(lambda: segment_to_bytes(segment), 50)
    read = seconds(lambda: segment_from_bytes(wire), 50)
    size = len(wire) / 2**20
    return {
        "pack_mib_s": round(size / packed),
        "read_checked_mib_s": round(size / read),
        "memcpy_mib_s": round(size / copy),
        "pack_over_memcpy": round(packed / copy, 2),
        "read_checked_over_memcpy": round(read / copy, 2),
        "wire_bytes_per_token": round(len(wire) / len(segment), 2),
    }


def at_rest(session: SyntheticSession, trajectory: Trajectory) -> dict[str, float]:
    """What a store keeps, and what writing and reading it cost: bytes over the tokens of all segments."""
    kept = trajectory_to_bytes(trajectory)
    log = sum(len(record_to_bytes(record)) for record in session.log)
    tokens = sum(map(len, trajectory.segments))
    return {
        "rest_trajectory_bytes_per_token": round(len(kept) / tokens, 2),
        "rest_log_bytes_per_token": round(log / tokens, 2),
        "rest_bytes_per_token": round((len(kept) + log) / tokens, 2),
        "rest_pack_ms": round(1e3 * seconds(lambda: trajectory_to_bytes(trajectory)), 2),
        "rest_read_ms": round(1e3 * seconds(lambda: trajectory_from_bytes(kept)), 2),
    }


def main() -> dict[str, object]:
    session, _ = grow(TURNS, retries=True)
    trajectory = finalize(session.tree, FINAL)
    log = [*session.log, final_to_record(FINAL)]
    _, times = grow(200)
    held = held_bytes(TURNS)
    tokens = TURNS * (NEW + SAMPLED)
    results: dict[str, object] = {
        "export_64k_ms": round(1e3 * seconds(lambda: finalize(session.tree, FINAL)), 2),
        "audit_64k_ms": round(1e3 * seconds(lambda: audit(log, trajectory)), 2),
        "record_turn_us": round(1e6 * statistics.median(times), 1),
        "record_turn200_over_turn10": round(
            statistics.median(times[190:200]) / statistics.median(times[5:15]), 2
        ),
        "match_256_messages_us": round(match_us(session), 1),
        "tree_mib_64k": round(held / 2**20, 3),
        "tree_bytes_per_token": round(held / tokens, 2),
        **packing(trajectory),
        **at_rest(session, trajectory),
    }
    report("segments", results)
    return results


if __name__ == "__main__":
    main()
