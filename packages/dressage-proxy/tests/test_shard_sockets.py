"""Folders of sockets: a killed process's is removed by the next one, a living one's never."""

import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from dressage_proxy import ConfigError
from dressage_proxy.control_bodies import merged_ready, unnamed
from dressage_proxy.shards.sockets import remove_abandoned, socket_folder
from dressage_proxy.shards.worker import FRONT

HOLD = """
import sys, time
from pathlib import Path
from dressage_proxy.shards.sockets import socket_folder
with socket_folder(Path(sys.argv[1])) as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def short():
    with tempfile.TemporaryDirectory(prefix="x", dir="/tmp") as name:
        yield Path(name)


def test_a_folder_is_removed_at_its_end_and_by_nobody_before(short):
    with socket_folder(short) as folder:
        (folder / "0.sock").touch()
        assert remove_abandoned(short) == []
        with socket_folder(short) as other:
            assert folder != other
        assert (folder / "0.sock").exists()
    assert list(short.iterdir()) == []


def test_the_folder_of_a_killed_process_is_removed_and_that_of_a_living_one_is_not(short):
    made = [
        subprocess.Popen(
            [sys.executable, "-c", HOLD, str(short)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    killed, living = (process.stdout.readline().strip() for process in made)
    made[0].kill()
    made[0].wait()
    assert [str(folder) for folder in remove_abandoned(short)] == [killed]
    assert [str(folder) for folder in short.iterdir()] == [living]
    for process in made:
        process.communicate()
    assert made[1].returncode == 0
    assert list(short.iterdir()) == []


def test_what_is_not_known_to_be_abandoned_stays(tmp_path):
    """One that has only begun has no lock yet, and a file of such a name is none of ours."""
    (tmp_path / "dressage-proxy-begun").mkdir()
    (tmp_path / "dressage-proxy-file").touch()
    (tmp_path / "other").mkdir()
    assert remove_abandoned(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 3


def test_a_path_that_no_socket_can_have_is_refused_and_no_folder_stays(tmp_path):
    deep = tmp_path / ("x" * 90)
    deep.mkdir()
    with pytest.raises(ConfigError, match="set TMPDIR to a shorter one"), socket_folder(deep):
        pass
    assert list(deep.iterdir()) == []


def test_a_path_that_is_just_short_enough_has_room_for_a_socket(short):
    rest = 103 - len("/dressage-proxy-12345678/front.sock") - len(str(short)) - 1
    fits, more = (short / ("x" * length) for length in (rest, rest + 1))
    fits.mkdir()
    more.mkdir()
    with socket_folder(fits) as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / FRONT))
    with pytest.raises(ConfigError), socket_folder(more):
        pass


def state(**changed):
    return {
        "ready": True, "engines": {"http://e": True}, "store_writable": True, "draining": False,
        "warnings": [], **changed,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("states", "draining", "expected"),
    [
        ([state(), state()], False, (True, True, False)),
        ([state(), None], False, (False, False, False)),
        ([state(ready=False, draining=True), None], True, (False, True, True)),
        ([None, None], True, (False, True, True)),
        ([state(), state()], True, (False, True, True)),
        ([state(store_writable=False), None], True, (False, False, True)),
    ],
)
def test_a_shard_that_has_ended_says_nothing_of_its_store(states, draining, expected):
    merged = merged_ready(states, draining=draining)
    assert (merged["ready"], merged["store_writable"], merged["draining"]) == expected


def test_engines_are_counted_for_who_may_not_know_where_they_are():
    assert unnamed({"http://b": True, "http://a": False}) == {"engine 1": False, "engine 2": True}
