"""Folders that runs are written to: never over another run, and nothing is left where nothing was sampled."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest
from dressage_recipes.errors import RecipeError, UsageError
from dressage_recipes.folders import LOCK, run_folder, sampled


def run(out: Path, error: BaseException, *, session: bool = False) -> None:
    """A run that ends with ``error``, after it stored a session or before it sampled anything."""
    with run_folder(out, "out"):
        begin(out)
        if session:
            (out / "store" / "log" / "a.log").write_text("x")
        raise error


def begin(out: Path) -> None:
    """What a run makes before it samples."""
    (out / "logs").mkdir()
    (out / "logs" / "proxy.log").write_text("x")
    (out / "config.toml").write_text("x")
    for kind in ("log", "trajectories", "retained"):
        (out / "store" / kind).mkdir(parents=True)


@pytest.mark.parametrize("error", [UsageError("wrong"), KeyboardInterrupt()])
def test_a_run_that_ended_before_it_sampled_anything_leaves_no_folder(
    error: BaseException, tmp_path: Path
) -> None:
    with pytest.raises(type(error)):
        run(tmp_path / "run", error)
    assert not (tmp_path / "run").exists()


def test_what_a_broken_run_wrote_into_its_logs_stays_until_the_next_one_begins(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(RecipeError):
        run(out, RecipeError("the proxy did not start", fix="look into the logs"))
    assert (out / "logs" / "proxy.log").exists()
    with run_folder(out, "out"):
        assert [path.name for path in out.iterdir()] == [".lock"]


@pytest.mark.parametrize("made", ["store/log/a.log", "store/retained/a.log", "summary.json", "precious"])
def test_a_folder_that_holds_something_is_never_written_over(made: str, tmp_path: Path) -> None:
    begin(tmp_path)
    (tmp_path / made).write_text("x")
    assert sampled(tmp_path)
    with pytest.raises(UsageError, match=r"--out .*: the folder is not empty"), run_folder(tmp_path, "--out"):
        raise AssertionError("it must not be taken")
    assert (tmp_path / made).read_text() == "x"
    assert (tmp_path / "config.toml").exists()
    assert not (tmp_path / ".lock").exists()


def test_ctrl_c_after_something_was_sampled_keeps_it(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", KeyboardInterrupt(), session=True)
    assert (tmp_path / "run" / "store" / "log" / "a.log").exists()


def test_two_runs_at_once_never_share_a_folder_not_even_before_they_sample(tmp_path: Path) -> None:
    with run_folder(tmp_path, "out") as out:
        begin(out)
        with pytest.raises(UsageError, match="another run writes there now"), run_folder(tmp_path, "out"):
            raise AssertionError("it must not be taken")
        assert (out / "config.toml").exists()


def test_a_lock_that_the_run_before_removes_in_that_moment_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, left = fcntl.flock, [tmp_path / LOCK]

    def while_another_ends(descriptor: int, how: int) -> None:
        if left:
            left.pop().unlink()
        flock(descriptor, how)

    monkeypatch.setattr("fcntl.flock", while_another_ends)
    with run_folder(tmp_path, "out") as out:
        assert (out / LOCK).exists()
        with pytest.raises(UsageError, match="another run writes there now"), run_folder(tmp_path, "out"):
            raise AssertionError("it must not be taken")
    assert left == []


def test_the_folder_of_a_killed_run_is_held_by_nobody(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from dressage_recipes.folders import run_folder\n"
        "with run_folder(Path(sys.argv[1]), 'out'):\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=60)
    assert (tmp_path / ".lock").exists()
    with run_folder(tmp_path, "out"):
        pass


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "/proc/no/such"])
def test_a_folder_that_cannot_be_made_is_named(name: str) -> None:
    with (
        pytest.raises(UsageError, match=r"out .*; name a folder that can be written"),
        run_folder(Path(name), "out"),
    ):
        raise AssertionError("it must not be made")
