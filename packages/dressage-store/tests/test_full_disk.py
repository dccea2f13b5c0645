"""A full disk: nothing is half kept, and what makes room can always be done."""

import dataclasses
import json
import subprocess
import sys
from types import MappingProxyType

import pytest
from dressage_segments import audit
from dressage_store import FilesStore, StoreFullError
from dressage_store.index import Index

SMALL_DISK = """
import json, os, subprocess, sys
from pathlib import Path
from dressage_segments import audit
from dressage_store import FilesStore, StoreError, StoreFullError
from dressage_store.contract import session_of

disk = Path(sys.argv[1])
mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
if subprocess.run(mount, capture_output=True).returncode:
    raise SystemExit(77)
written, published = {}, 0
store = FilesStore(disk / "s")
try:
    while True:
        name = f"s{published}"
        log, trajectory = session_of(name, 8)
        for record in log:
            store.append(name, record)
            written[name] = written.get(name, 0) + 1
        store.put(trajectory)
        published += 1
except StoreFullError as error:
    full = str(error)
ballast = os.open(disk / "ballast", os.O_WRONLY | os.O_CREAT)
for size in (4096, 1):
    try:
        while True:
            os.write(ballast, b"x" * size)
    except OSError:
        pass
free = os.statvfs(disk).f_bavail
before = store.pending()
store.ack(before[0], 1)
store.close()
with FilesStore(disk / "s") as store:
    acks = [store.ack(name, 1) for name in store.pending()[:2]]
    counts = {name: len(list(store.records(name))) for name in store.sessions()}
    proven = all(audit(store.records(name), store.read(name)).ok for name in store.pending())
    print(json.dumps({
        "full": full, "free": free, "published": published,
        "before": len(before), "after": len(store.pending()),
        "lost": [name for name, count in counts.items() if count != written[name]], "proven": proven,
        "halves": [path.name for path in disk.rglob("*.tmp")],
    }))
"""


def test_on_a_full_disk_nothing_is_half_kept_and_acks_and_restarts_still_work(tmp_path):
    command = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        sys.executable,
        "-c",
        SMALL_DISK,
        str(tmp_path),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare on this machine")
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no disk of its own can be mounted here")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "free space or raise the limit" in found["full"]
    assert found["free"] == 0
    assert found["published"] > 3
    assert found["after"] == found["before"] - 3
    assert found["lost"] == []
    assert found["proven"]
    assert found["halves"] == []


@pytest.fixture
def full_index(monkeypatch):
    """The index takes no writes as long as the store holds its reserve: a disk that is full but for it."""
    real = Index.set

    def set_if_room(index, entry):
        if (index._path.parent / "reserve").exists():
            raise StoreFullError("the disk is full")
        real(index, entry)

    monkeypatch.setattr(Index, "set", set_if_room)


def test_an_ack_on_a_full_disk_takes_the_room_that_was_kept_for_it(tmp_path, fill, session, full_index):
    root = tmp_path / "s"
    store = FilesStore(root)
    (root / "reserve").unlink()
    fill(store, "one")
    fill(store, "two")
    store.ack("one", 1)
    assert (root / "reserve").stat().st_size > 50_000, "taken back"
    store.ack("two", 1)
    store.append("three", session("three")[0][0])
    store.forget("three")
    assert store.pending() == store.sessions() == []
    store.close()


def test_a_trajectory_that_the_index_had_no_room_for_is_not_kept_and_can_be_put_again(
    tmp_path, session, monkeypatch, full_index
):
    root = tmp_path / "s"
    log, trajectory = session("one")
    with FilesStore(root) as store:
        for record in log:
            store.append("one", record)
        held = store.usage().total_bytes
        with pytest.raises(StoreFullError):
            store.put(trajectory)
        assert store.pending() == []
        assert list((root / "trajectories").iterdir()) == []
        assert store.usage().total_bytes == held
        monkeypatch.undo()
        store.put(trajectory)
        assert audit(store.records("one"), store.read("one")).ok
        assert store.usage().trajectory_bytes == store.entries()[0].nbytes


def test_an_outcome_of_any_mapping_is_indexed_as_it_is_published(tmp_path, session):
    _, trajectory = session("one")
    inner = MappingProxyType({"passed": 3, "text": "\ud800 ä"})
    with FilesStore(tmp_path / "s") as store:
        store.put(dataclasses.replace(trajectory, outcome={"reward": 1.0, "grader": inner}))
        assert store.read("one").outcome == {"reward": 1.0, "grader": dict(inner)}
        assert store.entries()[0].outcome == store.read("one").outcome


def test_a_reserve_that_a_crash_left_short_is_filled_again(tmp_path):
    root = tmp_path / "s"
    FilesStore(root).close()
    (root / "reserve").write_bytes(b"")
    FilesStore(root).close()
    assert (root / "reserve").stat().st_size > 50_000


@pytest.mark.parametrize(("retain", "says"), [(False, "ack or raise it"), (True, "frees nothing.*raise it")])
def test_a_full_quota_says_what_makes_room(tmp_path, session, retain, says):
    log, _ = session("one")
    refused = pytest.raises(StoreFullError, match=rf"max_bytes is 10.*{says}")
    with FilesStore(tmp_path / "s", max_bytes=10, retain=retain) as store, refused:
        store.append("one", log[0])
