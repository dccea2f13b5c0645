import fcntl
import os
import resource
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from dressage_segments import audit, record_to_bytes
from dressage_store import (
    CorruptStoreError,
    FilesStore,
    NotFoundError,
    State,
    StoreFullError,
    StoreLockedError,
    StorePathError,
    StoreReadOnlyError,
    StoreVersionError,
)
from dressage_store.contract import same


def kinds(store, name):
    return [record.kind for record in store.records(name)]


# -- the folder ---------------------------------------------------------------------------------------------


def test_the_layout_is_the_documented_one(tmp_path, fill):
    with FilesStore(tmp_path / "s") as store:
        fill(store, "one")
        names = {str(path.relative_to(store.root)) for path in store.root.rglob("*") if path.is_file()}
    assert {"FORMAT", "lock", "index.sqlite", "log/one.log", "trajectories/one.1.safetensors"} <= names
    assert (tmp_path / "s" / "FORMAT").read_text() == "dressage.store/2\n"


def test_a_store_of_another_version_is_refused_and_says_what_to_do(tmp_path):
    FilesStore(tmp_path / "s").close()
    for found in ("dressage.store/3", "dressage.store/", "dressage.store/1.5", "", "x" * 1000):
        (tmp_path / "s" / "FORMAT").write_text(f"{found}\n")
        for read_only in (False, True):
            with pytest.raises(StoreVersionError, match=rf"'{found[:64]}'.*use the dressage-store version"):
                FilesStore(tmp_path / "s", read_only=read_only)
        assert (tmp_path / "s" / "FORMAT").read_text() == f"{found}\n"


def test_a_path_that_is_a_file_or_holds_other_things_is_refused_untouched(tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    for path in (file, file / "below"):
        with pytest.raises(StorePathError, match="file"):
            FilesStore(path)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("x")
    with pytest.raises(StorePathError, match=r"thesis\.tex.*empty or a new folder"):
        FilesStore(other)
    assert [path.name for path in other.iterdir()] == ["thesis.tex"]


def test_reading_a_folder_that_is_no_store_is_refused_and_makes_nothing(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(StorePathError, match="store"):
            FilesStore(path, read_only=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_folder_without_permission_is_refused(tmp_path):
    (tmp_path / "s").mkdir(mode=0o500)
    with pytest.raises(StoreReadOnlyError, match="can be written"):
        FilesStore(tmp_path / "s")


def test_a_read_only_disk_is_a_clear_error(tmp_path, monkeypatch, session):
    log, _ = session("one")
    with FilesStore(tmp_path / "s") as store:
        store.append("one", log[0])

        def refuse(*_):
            raise OSError(30, "Read-only file system")

        monkeypatch.setattr(os, "write", refuse)
        with pytest.raises(StoreReadOnlyError, match=r"one\.log: Read-only file system: give a folder"):
            store.append("one", log[1])
        monkeypatch.undo()
        assert kinds(store, "one") == ["open"]


OLD = Path(__file__).parent / "store-1"
"""Written by the first version, with retain=True: sessions pending, published with experts, acked, open."""


@pytest.fixture
def old_store(tmp_path):
    return Path(shutil.copytree(OLD, tmp_path / "old"))


def contents(root):
    """All files but those that SQLite's readers share with each other."""
    files = [path for path in root.rglob("*") if path.is_file() and "sqlite-" not in path.name]
    return {path: path.read_bytes() for path in files}


def check_old(store):
    assert store.pending() == ["pending", "experts"]
    for name in ("pending", "experts", "acked"):
        report = audit(store.records(name), store.inspect(name))
        assert report.ok
        assert report.trained_tokens > 0
    (segment,) = store.inspect("experts").segments
    assert segment.token_ids.tolist() == [70_000, 2, 3, 300, 5, 4, 6, 7]
    assert segment.experts.shape == (7, 2, 3)
    assert kinds(store, "open") == ["open", "turn", "mark"]


def test_a_store_of_the_first_version_is_read_without_a_change(old_store):
    before = contents(old_store)
    with FilesStore(old_store, read_only=True) as store:
        check_old(store)
    assert contents(old_store) == before


def test_a_store_of_the_first_version_goes_on_and_is_then_of_the_second(old_store, fill, session):
    with FilesStore(old_store, retain=True) as store:
        check_old(store)
        fill(store, "new")
        store.append("open", session("open", 3)[0][3])
        store.ack("pending", 1)
    assert (old_store / "FORMAT").read_text() == "dressage.store/2\n"
    with FilesStore(old_store, retain=True) as store:
        assert store.pending() == ["experts", "new"]
        assert store.inspect("pending").trained_tokens
        assert len(list(store.records("open"))) == 4
        assert audit(store.records("new"), store.read("new")).ok


def test_the_format_changes_only_under_the_writers_lock(old_store):
    with (old_store / "lock").open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(StoreLockedError):
            FilesStore(old_store)
        assert (old_store / "FORMAT").read_text() == "dressage.store/1\n"


# -- one writer, any readers --------------------------------------------------------------------------------


def test_a_second_writer_gets_a_clear_error_and_the_first_goes_on(tmp_path, fill):
    with FilesStore(tmp_path / "s") as store:
        with pytest.raises(StoreLockedError, match=rf"process {os.getpid()} writes.*read_only=True"):
            FilesStore(tmp_path / "s")
        fill(store, "one")
    FilesStore(tmp_path / "s").close()


def test_readers_follow_a_living_writer_and_change_nothing(tmp_path, fill, session):
    with FilesStore(tmp_path / "s") as store, FilesStore(tmp_path / "s", read_only=True) as reader:
        log, trajectory = fill(store, "one")
        assert reader.sessions() == ["one"]
        assert len(list(reader.records("one"))) == len(log)
        assert reader.pending() == ["one"]
        assert reader.read("one").trained_tokens == trajectory.trained_tokens
        assert reader.usage() == store.usage()
        for write in (
            lambda: reader.append("one", log[1]),
            lambda: reader.put(trajectory),
            lambda: reader.ack("one", 1),
            lambda: reader.forget("one"),
        ):
            with pytest.raises(StoreReadOnlyError, match="read_only=True"):
                write()
        store.ack("one", 1)
        assert reader.pending() == []


def test_a_closed_store_can_be_read_where_nothing_can_be_written(tmp_path, fill):
    with FilesStore(tmp_path / "s") as store:
        fill(store, "one")
    for path in tmp_path.rglob("*"):
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        with FilesStore(tmp_path / "s", read_only=True) as reader:
            assert reader.pending() == ["one"]
            assert kinds(reader, "one")[0] == "open"
    finally:
        for path in tmp_path.rglob("*"):
            path.chmod(0o700)


def test_what_is_retained_can_be_audited_after_the_ack(tmp_path, fill):
    with FilesStore(tmp_path / "s", retain=True) as store:
        log, trajectory = fill(store, "one")
        store.ack("one", 1)
        assert store.sessions() == [], "nothing to recover"
        with pytest.raises(NotFoundError):
            store.read("one")
        assert store.inspect("one").trained_tokens == trajectory.trained_tokens
    with FilesStore(tmp_path / "s", read_only=True) as reader:
        assert reader.sessions() == ["one"]
        assert [record_to_bytes(r) for r in reader.records("one")] == [record_to_bytes(r) for r in log]
        assert [(entry.session_id, entry.state) for entry in reader.entries()] == [("one", State.ACKED)]
        assert reader.entries()[0].outcome == {"reward": 1.0}


def test_what_is_not_retained_is_deleted_with_the_ack(tmp_path, fill):
    with FilesStore(tmp_path / "s") as store:
        fill(store, "one")
        store.ack("one", 1)
        assert not list((tmp_path / "s").rglob("one*"))
        assert store.usage().total_bytes == 0
        with pytest.raises(NotFoundError):
            store.inspect("one")


# -- what a crash leaves ------------------------------------------------------------------------------------


def test_a_record_cut_at_any_byte_is_dropped_and_the_log_goes_on(tmp_path, session):
    log, _ = session("one", 2)
    root = tmp_path / "s"
    with FilesStore(root) as store:
        for record in log[:2]:
            store.append("one", record)
        whole = (root / "log/one.log").read_bytes()
        store.append("one", log[2])
    torn = (root / "log/one.log").read_bytes()
    for size in {
        *range(len(whole), len(torn), 37),
        len(whole) + 1,
        len(whole) + 7,
        len(whole) + 8,
        len(torn) - 1,
    }:
        (root / "log/one.log").write_bytes(torn[:size])
        with FilesStore(root, read_only=True) as reader:
            assert len(list(reader.records("one"))) == 2
        with FilesStore(root) as store:
            assert (root / "log/one.log").read_bytes() == whole
            store.append("one", log[2])
            assert len(list(store.records("one"))) == 3


def test_zeros_that_a_power_cut_left_are_a_torn_tail(tmp_path, session):
    log, _ = session("one")
    path = tmp_path / "s/log/one.log"
    with FilesStore(tmp_path / "s") as store:
        store.append("one", log[0])
    path.write_bytes(path.read_bytes() + bytes(4096))
    with FilesStore(tmp_path / "s") as store:
        assert kinds(store, "one") == ["open"]


def test_a_log_whose_first_record_was_torn_is_no_session(tmp_path, session):
    log, _ = session("one")
    path = tmp_path / "s/log/one.log"
    with FilesStore(tmp_path / "s") as store:
        store.append("one", log[0])
    path.write_bytes(path.read_bytes()[:-1])
    with FilesStore(tmp_path / "s") as store:
        assert store.sessions() == []
        store.append("one", log[0])
        assert kinds(store, "one") == ["open"]


def test_damage_in_the_middle_of_a_log_is_an_error_wherever_it_is_and_not_a_torn_tail(tmp_path, session):
    log, _ = session("one", 2)
    path = tmp_path / "s/log/one.log"
    with FilesStore(tmp_path / "s") as store:
        store.append("one", log[0])
        first = path.stat().st_size
        for record in log[1:3]:
            store.append("one", record)
        store.append("two", session("two")[0][0])
    good = path.read_bytes()
    second_end = len(good) - (8 + len(record_to_bytes(log[2])))
    for at in [*range(first, first + 30), *range(first + 30, second_end, 61)]:
        damaged = bytearray(good)
        damaged[at] ^= 0xFF
        path.write_bytes(damaged)
        with FilesStore(tmp_path / "s") as store:
            assert store.sessions() == ["one", "two"]
            with pytest.raises(CorruptStoreError, match=rf"one\.log.*byte {first}"):
                list(store.records("one"))
            with pytest.raises(CorruptStoreError):
                store.append("one", log[2])
            assert kinds(store, "two") == ["open"], "one damaged session keeps no other from recovery"
    path.write_bytes(good)


def test_a_trajectory_that_is_damaged_or_cut_anywhere_is_an_error_that_names_the_file(tmp_path, fill):
    with FilesStore(tmp_path / "s") as store:
        fill(store, "one")
        path = tmp_path / "s/trajectories/one.1.safetensors"
        good = path.read_bytes()
        for at in range(0, len(good), 7):
            for damaged in (good[:at], good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]):
                path.write_bytes(damaged)
                with pytest.raises(CorruptStoreError, match=r"one\.1\.safetensors"):
                    store.read("one")
        path.write_bytes(good)
        assert store.read("one")


def test_a_trajectory_that_was_renamed_into_place_but_not_indexed_is_published(tmp_path, fill, session):
    with FilesStore(tmp_path / "s") as store:
        fill(store, "one")
    for path in (tmp_path / "s").glob("index.sqlite*"):
        path.unlink()
    (tmp_path / "s/trajectories/two.1.safetensors.tmp").write_bytes(b"half")
    with FilesStore(tmp_path / "s") as store:
        assert store.pending() == ["one"]
        assert store.entries()[0].outcome == {"reward": 1.0}
        assert not list((tmp_path / "s").rglob("*.tmp"))
        assert store.usage().trajectory_bytes == store.entries()[0].nbytes


def test_deletions_that_a_crash_interrupted_are_finished(tmp_path, fill):
    root = tmp_path / "s"
    with FilesStore(root) as store:
        fill(store, "one")
        kept = {path: path.read_bytes() for path in root.rglob("one*") if path.is_file()}
        store.ack("one", 1)
    for path, data in kept.items():
        path.write_bytes(data)
    with FilesStore(root) as store:
        assert store.pending() == []
        assert store.sessions() == []
        assert not list(root.rglob("one*"))


# -- full disks ---------------------------------------------------------------------------------------------


def test_a_partial_write_on_a_full_disk_is_taken_back_and_the_session_goes_on(tmp_path, session, monkeypatch):
    log, _ = session("one")
    real = os.write
    with FilesStore(tmp_path / "s") as store:
        store.append("one", log[0])
        size = (tmp_path / "s/log/one.log").stat().st_size
        calls = []

        def half(descriptor, data):
            calls.append(len(data))
            if len(calls) > 1:
                raise OSError(28, "No space left on device")
            return real(descriptor, bytes(data)[: len(data) // 2])

        monkeypatch.setattr(os, "write", half)
        with pytest.raises(StoreFullError, match=r"one\.log: No space left"):
            store.append("one", log[1])
        monkeypatch.undo()
        assert (tmp_path / "s/log/one.log").stat().st_size == size
        store.append("one", log[1])
        assert kinds(store, "one") == ["open", "turn"]


def test_a_full_disk_that_cannot_even_be_cut_is_repaired_before_the_next_record(
    tmp_path, session, monkeypatch
):
    log, _ = session("one")
    real = os.write
    with FilesStore(tmp_path / "s") as store:
        store.append("one", log[0])

        def half(descriptor, data):
            if len(data) < 100:
                raise OSError(28, "No space left on device")
            return real(descriptor, bytes(data)[: len(data) - 50])

        def stuck(*_):
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "write", half)
        monkeypatch.setattr(os, "ftruncate", stuck)
        with pytest.raises(StoreFullError):
            store.append("one", log[1])
        monkeypatch.undo()
        store.append("one", log[1])
        assert kinds(store, "one") == ["open", "turn"]


@pytest.mark.parametrize("where", ["first write", "last write", "fsync"])
def test_an_append_that_is_interrupted_anywhere_is_taken_back_and_harms_no_later_record(
    tmp_path, session, monkeypatch, where
):
    log, _ = session("one")
    real = os.write

    def half(descriptor, data):
        written = real(descriptor, bytes(data)[: max(1, len(data) // 2)])
        if (where == "first write") == (len(data) > written):
            raise KeyboardInterrupt
        return written

    def interrupted(*_):
        raise KeyboardInterrupt

    def full(descriptor, data):
        real(descriptor, bytes(data)[:20])
        raise OSError(28, "No space left on device")

    with FilesStore(tmp_path / "s", fsync=True) as store:
        for record in log[:2]:
            store.append("one", record)
        monkeypatch.setattr(os, *(("fsync", interrupted) if where == "fsync" else ("write", half)))
        with pytest.raises(KeyboardInterrupt):
            store.append("one", log[2])
        monkeypatch.undo()
        assert len(list(store.records("one"))) == 2
        store.append("one", log[2])
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(StoreFullError):
            store.append("one", log[3])
        monkeypatch.undo()
        store.append("one", log[3])
        assert same(list(store.records("one")), log[:4])
    with FilesStore(tmp_path / "s") as store:
        assert same(list(store.records("one")), log[:4])


FULL = """
import resource, sys
from dressage_store import FilesStore, StoreFullError
from dressage_store.contract import session_of
log, trajectory = session_of("one", 30)
store = FilesStore(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
kept = 0
for record in log:
    try:
        store.append("one", record)
    except StoreFullError:
        break
    kept += 1
else:
    raise SystemExit("the limit was never reached")
try:
    store.put(trajectory)
except StoreFullError:
    print(kept, flush=True)
"""


def test_the_systems_own_file_limit_leaves_whole_records_only(tmp_path):
    assert resource.RLIMIT_FSIZE
    found = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "s"), "4000"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    with FilesStore(tmp_path / "s") as store:
        assert len(list(store.records("one"))) == int(found.stdout)
        assert store.pending() == []
        assert not list((tmp_path / "s").rglob("*.tmp"))


def test_a_quota_refuses_before_writing_and_an_ack_makes_room(tmp_path, fill, session):
    with FilesStore(tmp_path / "s") as store:
        fill(store, "one")
        held = store.usage().total_bytes
    log, trajectory = session("two")
    with FilesStore(tmp_path / "s", max_bytes=held) as store:
        with pytest.raises(StoreFullError, match=rf"max_bytes is {held}"):
            store.append("two", log[0])
        with pytest.raises(StoreFullError, match="max_bytes"):
            store.put(trajectory)
        assert store.sessions() == ["one"]
        assert store.usage().total_bytes == held
        store.ack("one", 1)
        store.append("two", log[0])


def test_usage_counts_the_bytes_on_the_disk(tmp_path, fill, session):
    root = tmp_path / "s"

    def on_disk(pattern):
        return sum(path.stat().st_size for path in root.glob(pattern))

    for retain in (False, True):
        with FilesStore(root, retain=retain) as store:
            fill(store, f"a{retain}")
            fill(store, f"b{retain}")
            store.ack(f"a{retain}", 1)
            store.append(f"c{retain}", session("c")[0][0])
            usage = store.usage()
            assert usage.log_bytes == on_disk("log/*") + on_disk("retained/*")
            assert usage.trajectory_bytes == on_disk("trajectories/*")
        with FilesStore(root, retain=True) as store:
            assert store.usage() == usage


# -- cost ---------------------------------------------------------------------------------------------------


def test_open_descriptors_are_bounded_however_many_sessions_write(tmp_path, session):
    log, _ = session("one")
    before = len(list(Path("/proc/self/fd").iterdir()))
    with FilesStore(tmp_path / "s", max_open_files=16) as store:
        for step in range(2):
            for number in range(300):
                store.append(f"session-{number}", log[step])
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 16 + 8
        assert all(kinds(store, f"session-{number}") == ["open", "turn"] for number in range(0, 300, 50))
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_a_record_costs_one_write_and_no_reading_even_after_its_descriptor_was_given_up(
    tmp_path, session, monkeypatch
):
    log, _ = session("one")
    writes: list[int] = []
    real = os.write
    with FilesStore(tmp_path / "s", max_open_files=1) as store:
        store.append("one", log[0])
        store.append("two", log[0])

        def counted(descriptor, data):
            writes.append(len(data))
            return real(descriptor, data)

        def never(*_):
            raise AssertionError("an append read its log")

        monkeypatch.setattr(os, "write", counted)
        monkeypatch.setattr(Path, "read_bytes", never)
        store.append("one", log[1])
        monkeypatch.undo()
    assert writes == [8 + len(record_to_bytes(log[1]))]


def test_threads_may_share_a_store(tmp_path, session):
    logs = {f"s{number}": session(f"s{number}", 6) for number in range(6)}
    with FilesStore(tmp_path / "s", max_open_files=2) as store:

        def write(name):
            log, trajectory = logs[name]
            for record in log:
                store.append(name, record)
            store.put(trajectory)

        threads = [threading.Thread(target=write, args=(name,)) for name in logs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(store.pending()) == sorted(logs)
        for name, (log, _) in logs.items():
            assert len(list(store.records(name))) == len(log)
