from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
from dressage_sandbox.cli import main, size


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


def test_run_says_which_field_is_wrong(runtime_dir: Path) -> None:
    done = cli(runtime_dir, "run", "--relay", "nonsense", "--", "true")
    assert done.returncode == 125
    assert b"relay='nonsense': write it as" in done.stderr


def test_pool_status_and_reap_on_nothing(runtime_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--runtime-dir", str(runtime_dir), "pool", "status"]) == 0
    assert capsys.readouterr().out == "0 sandboxes, 0 of dead owners\n"
    assert main(["--runtime-dir", str(runtime_dir), "pool", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["--runtime-dir", str(runtime_dir), "pool", "reap"]) == 0


@pytest.mark.parametrize(
    ("text", "expected"), [("1", 1), ("2k", 2048), ("512M", 512 << 20), ("1GiB", 1 << 30)]
)
def test_sizes_are_read(text: str, expected: int) -> None:
    assert size(text) == expected


@pytest.mark.parametrize("text", ["", "M", "1T", "-1", "1.5G"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        size(text)
