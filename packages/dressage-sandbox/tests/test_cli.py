from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from dressage_sandbox.cli import main, size
from dressage_sandbox.owner import Owner, start_time
from dressage_sandbox.owners import Record, Records


def cli(runtime_dir: Path, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "dressage_sandbox.cli", "--runtime-dir", str(runtime_dir), *words]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=30, check=False)


def test_run_passes_the_exit_code_and_both_streams_through(runtime_dir: Path) -> None:
    done = cli(runtime_dir, "run", "--env", "A=b c", "--", "sh", "-c", "echo $A; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"b c\n", b"err\n")


def test_run_hands_standard_input_on_when_asked(runtime_dir: Path) -> None:
    assert cli(runtime_dir, "run", "--stdin", "--", "cat", stdin=b"\x00\xff").stdout == b"\x00\xff"
    assert cli(runtime_dir, "run", "--", "cat", stdin=b"ignored").stdout == b""


def test_run_answers_124_on_a_time_out(runtime_dir: Path) -> None:
    done = cli(runtime_dir, "run", "--timeout", "0.3", "--", "sleep", "9")
    assert done.returncode == 124
    assert b"ended after 0.3 s" in done.stderr


def test_run_streams_all_of_the_output(runtime_dir: Path) -> None:
    done = cli(
        runtime_dir, "run", "--stream", "--output", "1k", "--", "sh", "-c", "yes | head -c 90000; echo e >&2"
    )
    assert (len(done.stdout), done.stderr, done.returncode) == (90_000, b"e\n", 0)


def test_run_ends_in_peace_when_nobody_reads_its_output(runtime_dir: Path) -> None:
    command = [sys.executable, "-m", "dressage_sandbox.cli", "--runtime-dir", str(runtime_dir), "run"]
    with subprocess.Popen(
        [*command, "--stream", "--", "yes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.read(1)
        run.stdout.close()
        assert b"Traceback" not in run.stderr.read()
        assert run.wait(timeout=10) == 141


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_run_that_is_told_to_end_leaves_nothing_to_any_reaper(
    runtime_dir: Path, number: signal.Signals, wait_until: Callable[[Callable[[], bool], str], None]
) -> None:
    command = [sys.executable, "-m", "dressage_sandbox.cli", "--runtime-dir", str(runtime_dir), "run"]
    run = subprocess.Popen(
        [*command, "--stream", "--", "sh", "-c", "echo up; sleep 60"], stdout=subprocess.PIPE
    )
    assert run.stdout is not None
    assert run.stdout.readline() == b"up\n"
    for reaper in psutil.process_iter(["cmdline"]):
        if (reaper.info["cmdline"] or [""])[-1] == str(runtime_dir):
            reaper.kill()
    (record,) = Records(runtime_dir).all()
    run.send_signal(number)
    run.send_signal(number)  # again: the cleaning up goes on
    assert run.wait(timeout=10) == 128 + number
    run.stdout.close()
    assert not list(runtime_dir.glob("*.json"))
    assert start_time(record.pid) is None
    assert not any(Path(group).exists() for group in record.cgroups)


def test_run_ends_as_soon_as_nobody_will_read_its_output(runtime_dir: Path) -> None:
    command = [sys.executable, "-m", "dressage_sandbox.cli", "--runtime-dir", str(runtime_dir), "run"]
    with subprocess.Popen([*command, "--", "sleep", "20"], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        run.stdout.close()
        assert run.wait(timeout=10) == 141


def test_run_keeps_the_work_folder_of_a_command_that_fails(runtime_dir: Path, tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    cli(runtime_dir, "run", "--keep", str(keep), "--", "true")
    assert not keep.exists()
    done = cli(runtime_dir, "run", "--keep", str(keep), "--", "sh", "-c", "echo x >x; exit 3")
    assert done.returncode == 3
    (folder,) = keep.iterdir()
    assert str(folder) in done.stderr.decode()
    assert sorted(path.name for path in folder.iterdir()) == ["about.json", "workspace.tar"]


def test_run_gives_an_allow_list_and_a_root(
    runtime_dir: Path, tmp_path: Path, make_image: Callable[[Path], None]
) -> None:
    done = cli(runtime_dir, "run", "--egress", "example.org:443", "--", "env")
    assert b"HTTPS_PROXY=http://127.0.0.1:8801\n" in done.stdout
    assert b"egress=" in cli(runtime_dir, "run", "--egress", "x", "--", "env").stderr
    root = tmp_path / "root"
    make_image(root)
    words = ("run", "--root", str(root), "--workdir", "/testbed", "--", "cat", "link")
    assert cli(runtime_dir, *words).stdout == b"of the image\n"


def test_run_says_which_field_is_wrong(runtime_dir: Path) -> None:
    done = cli(runtime_dir, "run", "--relay", "nonsense", "--", "true")
    assert done.returncode == 125
    assert b"relay='nonsense': write it as" in done.stderr
    done = cli(runtime_dir, "run", "--timeout", "inf", "--", "true")
    assert (done.returncode, b"timeout_s" in done.stderr) == (125, True)


def test_pool_status_and_reap_on_nothing(runtime_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--runtime-dir", str(runtime_dir), "pool", "status"]) == 0
    assert capsys.readouterr().out == "0 sandboxes, 0 of dead owners\n"
    assert main(["--runtime-dir", str(runtime_dir), "pool", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["--runtime-dir", str(runtime_dir), "pool", "reap"]) == 0


def test_reap_goes_on_when_asked_and_removes_what_dies_meanwhile(runtime_dir: Path) -> None:
    records = Records(runtime_dir)
    records.prepare()
    owner = subprocess.Popen(["sleep", "60"])
    records.put(
        Record("sb-1", Owner(owner.pid, start_time(owner.pid) or 0, Owner.this_process().boot), "", 1, 1, ())
    )
    command = [
        sys.executable,
        "-m",
        "dressage_sandbox.cli",
        "--runtime-dir",
        str(runtime_dir),
        "pool",
        "reap",
    ]
    reaper = subprocess.Popen([*command, "--every", "0.05"], stdout=subprocess.PIPE)
    assert reaper.stdout is not None
    assert len(records.all()) == 1
    owner.kill()
    owner.wait()
    assert reaper.stdout.readline() == b"removed sb-1\n"
    reaper.send_signal(signal.SIGINT)
    assert reaper.wait(timeout=5) == 130
    reaper.stdout.close()


@pytest.mark.parametrize(
    ("text", "expected"), [("1", 1), ("2k", 2048), ("512M", 512 << 20), ("1GiB", 1 << 30)]
)
def test_sizes_are_read(text: str, expected: int) -> None:
    assert size(text) == expected


@pytest.mark.parametrize("text", ["", "M", "1T", "-1", "1.5G"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        size(text)
