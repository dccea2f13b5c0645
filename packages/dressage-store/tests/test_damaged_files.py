"""Damage that no crash makes is an error and no loss; what a crash makes is mended."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from dressage_segments import audit, record_to_bytes
from dressage_store import CorruptStoreError, FilesStore, NotFoundError, SessionFinishedError


def written(root, log, name="one"):
    with FilesStore(root) as store:
        for record in log:
            store.append(name, record)
    return root / f"log/{name}.log"


def test_damage_of_any_byte_of_the_last_record_is_an_error_and_no_torn_tail(tmp_path, session):
    log, _ = session("one", 2)
    path = written(tmp_path / "s", log[:2])
    good = path.read_bytes()
    begin = len(good) - 8 - len(record_to_bytes(log[1]))
    for at in [*range(begin, begin + 40), *range(begin + 40, len(good), 11), len(good) - 1]:
        for flip in (0x01, 0x80):
            damaged = bytearray(good)
            damaged[at] ^= flip
            path.write_bytes(damaged)
            with FilesStore(tmp_path / "s") as store:
                with pytest.raises(CorruptStoreError, match=rf"one\.log.*byte {begin}.*restore the file"):
                    list(store.records("one"))
                with pytest.raises(CorruptStoreError):
                    store.append("one", log[2])
            assert path.read_bytes() == damaged, "left for whoever can restore it"


@pytest.mark.parametrize("cut", [1, 100, 511, 512, 700])
def test_a_last_record_that_ends_in_blocks_of_zeros_is_a_torn_tail(tmp_path, session, cut):
    log, _ = session("one", 2)
    path = written(tmp_path / "s", log[:1])
    whole = path.stat().st_size
    torn = bytearray(written(tmp_path / "s", log[1:2]).read_bytes()) + os.urandom(2000)
    size = len(torn)
    torn[whole + cut :] = bytes(size - whole - cut)
    torn[whole : whole + 4] = (size - whole - 8).to_bytes(4, "little")
    path.write_bytes(torn)
    with FilesStore(tmp_path / "s") as store:
        assert [record.kind for record in store.records("one")] == ["open"]
        store.append("one", log[1])
        assert len(list(store.records("one"))) == 2


def test_a_damaged_trajectory_that_the_index_never_had_keeps_no_other_from_recovery(tmp_path, fill):
    root = tmp_path / "s"
    with FilesStore(root) as store:
        for name in ("one", "two"):
            _, trajectory = fill(store, name)
    for path in root.glob("index.sqlite*"):
        path.unlink()
    path = root / "trajectories/two.1.safetensors"
    for damage in (b"", path.read_bytes()[:-1]):
        path.write_bytes(damage)
        with FilesStore(root) as store:
            assert store.pending() == ["one"]
            assert store.sessions() == ["one", "two"]
    with FilesStore(root) as store:
        store.put(trajectory)
        assert audit(store.records("two"), store.read("two")).ok
    with FilesStore(root) as store:
        assert store.pending() == ["one", "two"]
        assert store.usage().trajectory_bytes == sum(entry.nbytes for entry in store.entries())


def test_a_damaged_trajectory_is_named_on_reading_and_an_ack_drops_it(tmp_path, fill):
    with FilesStore(tmp_path / "s") as store:
        fill(store, "one")
        (tmp_path / "s/trajectories/one.1.safetensors").write_bytes(b"")
    with FilesStore(tmp_path / "s") as store:
        with pytest.raises(CorruptStoreError, match=r"one\.1\.safetensors.*ack it to drop it"):
            store.read("one")
        store.ack("one", 1)
        assert store.pending() == []


# -- what is not the store's ---------------------------------------------------------------------------------

COPIES = [
    "log/one copy.log",
    "log/._one.log",
    f"log/{'x' * 140}.log",
    "retained/one (1).log",
    "trajectories/one copy.1.safetensors",
    "trajectories/one-copy.1.safetensors",
    "trajectories/._one.1.safetensors",
    "trajectories/one.01.safetensors",
    "trajectories/one.٣.safetensors",
    "trajectories/notes.safetensors",
]


@pytest.mark.parametrize("acked", [False, True])
@pytest.mark.parametrize("name", COPIES)
def test_copies_that_people_leave_in_a_store_are_no_sessions_and_bring_nothing_back(
    tmp_path, fill, name, acked
):
    root = tmp_path / "s"
    with FilesStore(root, retain=True) as store:
        fill(store, "one")
        source = "trajectories/one.1.safetensors" if name.startswith("traj") else "log/one.log"
        data = (root / source).read_bytes()
        if acked:
            store.ack("one", 1)
        before = store.sessions(), store.pending(), store.entries()
    (root / name).write_bytes(data)
    for read_only in (True, False, False):
        with FilesStore(root, retain=True, read_only=read_only) as store:
            if not read_only or not acked:
                assert store.sessions() == before[0]
            assert (store.pending(), store.entries()) == before[1:]
            for session_id in store.sessions():
                assert list(store.records(session_id))
    assert (root / name).read_bytes() == data


@pytest.mark.parametrize(
    "name",
    [
        "log/two.log",
        "retained/two.log",
        "trajectories/two.1.safetensors",
        "trajectories/two.1.safetensors.tmp",
    ],
)
def test_a_folder_where_a_file_should_be_keeps_no_other_session_from_recovery(tmp_path, fill, name):
    root = tmp_path / "s"
    with FilesStore(root) as store:
        fill(store, "one")
    (root / name).mkdir()
    with FilesStore(root) as store:
        assert (store.sessions(), store.pending()) == (["one"], ["one"])


def test_trajectories_that_changed_places_are_each_refused_with_what_they_hold(tmp_path, fill):
    root = tmp_path / "s"
    with FilesStore(root) as store:
        for name in ("one", "two"):
            fill(store, name)
        one, two = (root / f"trajectories/{name}.1.safetensors" for name in ("one", "two"))
        first, second = one.read_bytes(), two.read_bytes()
        one.write_bytes(second)
        two.write_bytes(first)
        with pytest.raises(
            CorruptStoreError, match=r"one\.1\.safetensors: holds generation 1 of session 'two'"
        ):
            store.read("one")
        with pytest.raises(CorruptStoreError, match="holds generation 1 of session 'one'"):
            store.inspect("two")


# -- the index ----------------------------------------------------------------------------------------------


@pytest.fixture
def indexed(tmp_path, fill, session):
    """A store that retains, in which one session each is pending, acked, dropped and open."""
    with FilesStore(tmp_path / "s", retain=True) as store:
        for name in ("pending", "acked", "dropped", "open"):
            fill(store, name) if name in {"pending", "acked"} else store.append(name, session(name)[0][0])
        store.ack("acked", 1)
        store.forget("dropped")
    return tmp_path / "s"


def test_a_lost_index_is_made_anew_and_offers_nothing_that_was_finished(indexed, session):
    (indexed / "index.sqlite").unlink()
    for _ in range(2):
        with FilesStore(indexed, retain=True) as store:
            assert store.pending() == ["pending"]
            assert store.sessions() == ["open", "pending"]
            states = {entry.session_id: entry.state.value for entry in store.entries()}
            assert states == {"pending": "pending", "acked": "acked", "dropped": "dropped"}
            assert store.inspect("acked").generation == 1
            for name in ("acked", "dropped"):
                with pytest.raises(SessionFinishedError):
                    store.append(name, session(name)[0][0])


def test_a_lost_index_does_not_cost_a_finished_session_its_damaged_trajectory(indexed):
    (indexed / "index.sqlite").unlink()
    path = indexed / "trajectories/acked.1.safetensors"
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    with FilesStore(indexed, retain=True) as store:
        assert store.pending() == ["pending"]
    path.write_bytes(good)
    with FilesStore(indexed, retain=True) as store:
        assert store.pending() == ["pending"]
        assert store.inspect("acked").generation == 1


def _said(root, read_only):
    """What a store says of itself."""
    with FilesStore(root, retain=True, read_only=read_only) as store:
        return store.pending(), store.entries()


@pytest.mark.parametrize("read_only", [False, True])
def test_an_index_that_is_cut_or_zeroed_anywhere_is_refused_or_says_the_same(indexed, read_only):
    path = indexed / "index.sqlite"
    good = path.read_bytes()
    whole = _said(indexed, read_only)
    assert whole[0] == ["pending"]
    refused = 0
    for at in range(4096, len(good), 127):
        for damaged in (good[:at], good[:at] + bytes(len(good[at : at + 128])) + good[at + 128 :]):
            path.write_bytes(damaged)
            try:
                assert _said(indexed, read_only) == whole
            except CorruptStoreError:
                refused += 1
    assert refused > 100


def test_a_row_that_says_what_none_says_is_refused_with_the_file(indexed):
    good = (indexed / "index.sqlite").read_bytes()
    for change in ("outcome = '{'", "outcome = 7.5", "state = 'gone'", "outcome = x'ff'"):
        (indexed / "index.sqlite").write_bytes(good)
        with closing(sqlite3.connect(indexed / "index.sqlite", isolation_level=None)) as connection:
            connection.execute("PRAGMA ignore_check_constraints = 1")
            connection.execute(f"UPDATE entries SET {change}")
        with pytest.raises(CorruptStoreError, match=r"index\.sqlite"):
            FilesStore(indexed, retain=True)


def test_a_generation_that_the_index_has_wrong_costs_no_trajectory(indexed):
    for wrong in (0, 3):
        with closing(sqlite3.connect(indexed / "index.sqlite", isolation_level=None)) as connection:
            connection.execute(f"UPDATE entries SET generation = {wrong}")
        FilesStore(indexed, retain=True).close()
        assert {path.name for path in (indexed / "trajectories").iterdir()} == {
            "acked.1.safetensors",
            "pending.1.safetensors",
        }


# -- who reads and who writes --------------------------------------------------------------------------------


def test_two_readers_of_a_session_that_is_acked_meanwhile_find_it_whole_or_not_at_all(tmp_path, fill):
    root = tmp_path / "s"
    with (
        FilesStore(root) as store,
        FilesStore(root, read_only=True) as one,
        FilesStore(root, read_only=True) as two,
    ):
        _, trajectory = fill(store, "a")
        fill(store, "b")
        assert one.pending() == two.pending() == ["a", "b"]
        assert one.read("a").trained_tokens == two.read("a").trained_tokens == trajectory.trained_tokens
        store.ack("a", 1)
        for reader in (one, two):
            with pytest.raises(NotFoundError):
                reader.read("a")
            assert list(reader.records("a")) == []
            assert reader.pending() == ["b"]
            assert reader.read("b")


FORK = """
import os, sys
from dressage_store import FilesStore, StoreClosedError
from dressage_store.contract import session_of
with FilesStore(sys.argv[1]) as store:
    store.put(session_of("one")[1])
    child = os.fork()
    if not child:
        try:
            store.close()
            store.pending()
        except StoreClosedError as error:
            print(error, flush=True)
            os._exit(3)
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    store.put(session_of("two")[1])
    assert store.pending() == ["one", "two"]
"""


def test_a_fork_of_the_writer_is_refused_and_closes_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(tmp_path / "s")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "this is a fork: open it here too, with read_only=True" in done.stdout


@pytest.mark.parametrize(
    "name", ["a b", "%41?x#y&z", "ä\u2028ö", "line\nbreak", "-rf", "'\"$(x)`", os.fsdecode(b"\xff\xfe")]
)
def test_a_folder_of_any_name_is_a_store(tmp_path, fill, name):
    root = tmp_path / name / "store"
    with FilesStore(root, retain=True) as store:
        fill(store, "one")
        fill(store, "two")
        store.ack("one", 1)
    with FilesStore(root, read_only=True) as reader:
        assert reader.pending() == ["two"]
        assert reader.sessions() == ["one", "two"]
        assert reader.inspect("one").session_id == "one"


@pytest.mark.parametrize(
    "name", ["a.1", "a.1.1", "x.log", "x.tmp", "FORMAT", "index.sqlite", "-", "_", "0", "x" * 128, "A", "a"]
)
def test_sessions_named_like_files_of_the_store_are_sessions(tmp_path, fill, name):
    with FilesStore(tmp_path / "s") as store:
        fill(store, "a.1.safetensors")
        fill(store, name)
    with FilesStore(tmp_path / "s") as store:
        assert store.pending() == ["a.1.safetensors", name]
        assert audit(store.records(name), store.read(name)).ok
        store.ack(name, 1)
        assert store.sessions() == ["a.1.safetensors"]
        assert store.read("a.1.safetensors")


READ_ALL = """
import sys
from dressage_store import FilesStore, StoreError
for read_only in (True, False):
    try:
        with FilesStore(sys.argv[1], read_only=read_only) as store:
            for read in (store.inspect, lambda name: list(store.records(name))):
                try:
                    read("one")
                except StoreError as error:
                    print(type(error).__name__, error)
    except StoreError as error:
        print(type(error).__name__, error)
print("done")
"""


@pytest.mark.parametrize("link", [False, True], ids=["a FIFO", "a link to a device"])
@pytest.mark.parametrize(
    "file", ["trajectories/one.1.safetensors", "retained/one.log", "log/one.log", "index.sqlite"]
)
def test_what_is_no_regular_file_is_refused_by_its_path_and_not_waited_for(tmp_path, fill, file, link):
    root = tmp_path / "s"
    with FilesStore(root, retain=True) as store:
        fill(store, "one")
        if not file.startswith("log/"):
            store.ack("one", 1)
    (root / file).unlink()
    if link:
        (root / file).symlink_to("/dev/null")
    else:
        os.mkfifo(root / file)
    done = subprocess.run(
        [sys.executable, "-c", READ_ALL, str(root)], capture_output=True, text=True, timeout=60, check=True
    )
    assert f"StorePathError {root / file}: is no regular file: restore it" in done.stdout


def test_a_reserve_that_is_no_regular_file_is_not_waited_for(tmp_path, fill):
    root = tmp_path / "s"
    with FilesStore(root) as store:
        fill(store, "one")
    (root / "reserve").unlink()
    os.mkfifo(root / "reserve")
    done = subprocess.run(
        [sys.executable, "-c", READ_ALL, str(root)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "done\n"
