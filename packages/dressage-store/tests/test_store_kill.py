"""P6: kill -9 of the writer at random points loses no acknowledged record and doubles none."""

import random
import signal
import subprocess
import sys

import pytest
from dressage_segments import audit
from dressage_store import FilesStore

WRITER = """
import sys
import numpy as np
from dressage_segments import FailureClass, Final, LogRecord, final_to_record, finalize
from dressage_segments.synthetic import SyntheticSession
from dressage_store import FilesStore

def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()

store = FilesStore(sys.argv[1], max_open_files=2)
first = int(sys.argv[2])
say("ready")
for number in range(first, first + 1000):
    name = f"session-{number}"
    session = SyntheticSession(name)
    for turn in range(4):
        parent = turn - 1
        session.turn(np.arange(50 * (turn + 1)), np.arange(200), parent=parent, keys=[f"m{turn}"])
    final = Final(1, FailureClass.COMPLETED, {"reward": 1.0})
    for at, record in enumerate([*session.log, final_to_record(final)]):
        store.append(name, record)
        say("append", name, at)
    store.put(finalize(session.tree, final))
    say("put", name)
    if number % 3 == 0:
        store.ack(name, 1)
        say("ack", name)
"""
KILLS = 24


def run_and_kill(root, first, rng):
    """What the writer acknowledged before it was killed after a random number of lines."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root), str(first)], stdout=subprocess.PIPE, text=True
    ) as writer:
        said = []
        for _ in range(rng.randint(1, 60)):
            said.append(writer.stdout.readline().split())
        writer.send_signal(signal.SIGKILL)
        said += [line.split() for line in writer.stdout.read().splitlines()]
    assert writer.returncode == -signal.SIGKILL
    return said


@pytest.mark.parametrize("round_", range(KILLS // 4))
def test_p6_kill_9_at_random_points_loses_no_acknowledged_record_and_doubles_none(tmp_path, round_):
    rng = random.Random(round_)
    root = tmp_path / "s"
    written: dict[str, int] = {}
    put: set[str] = set()
    acked: set[str] = set()
    for kill in range(4):
        for what, *rest in run_and_kill(root, 1000 * kill, rng):
            if what == "append":
                written[rest[0]] = int(rest[1]) + 1
            elif what == "put":
                put.add(rest[0])
            elif what == "ack":
                acked.add(rest[0])
        with FilesStore(root) as store:
            pending = store.pending()
            assert len(set(pending)) == len(pending)
            assert put - acked <= set(pending) | {name for name in put if int(name[8:]) % 3 == 0}
            assert not acked & set(pending), "nothing is read twice"
            alive = set(store.sessions())
            for name, count in written.items():
                if name not in alive:
                    assert int(name[8:]) % 3 == 0, "only an ack removes a log"
                    assert name in put
                    continue
                records = list(store.records(name))
                assert count <= len(records) <= count + 1, "all that was acknowledged, at most one more"
                indices = [r.meta["index"] for r in records if r.kind == "turn"]
                assert indices == list(range(len(indices))), "none doubled, none lost in between"
            for name in set(pending) & alive:
                assert audit(store.records(name), store.read(name)).ok
