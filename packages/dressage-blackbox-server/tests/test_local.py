"""The local executor: real processes, real trees."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest
from dressage_blackbox_server import ExecutorError, LaunchError, LocalExecutor
from dressage_blackbox_server.output import BoundedOutput
from hypothesis import given
from hypothesis import strategies as st

ENV = {"PATH": os.environ["PATH"]}


async def run(
    *argv: str, cwd: str = "/", stdin: bytes = b"", timeout_s: float = 20.0, output_bytes: int = 1 << 16
):
    executor = LocalExecutor(ENV)
    return await executor.run(
        argv, env={}, cwd=cwd, stdin=stdin, timeout_s=timeout_s, output_bytes=output_bytes
    )


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def until_dead(*pids: int) -> None:
    deadline = time.monotonic() + 20
    while any(map(alive, pids)):
        assert time.monotonic() < deadline, f"still alive: {[p for p in pids if alive(p)]}"
        await asyncio.sleep(0.01)


async def test_streams_and_exit_code_are_kept_apart_and_stdin_arrives():
    result = await run(
        "sh", "-c", "cat; echo err >&2; exit 9", stdin=b"in\x00\xff" * 50_000, output_bytes=1 << 20
    )
    assert result.stdout == b"in\x00\xff" * 50_000
    assert (result.stderr, result.exit_code, result.timed_out) == (b"err\n", 9, False)


async def test_a_signal_is_128_plus_its_number():
    assert (await run("sh", "-c", "kill -TERM $$")).exit_code == 143


async def test_a_program_that_never_reads_its_input_ends_normally():
    assert (await run("true", stdin=b"x" * 1_000_000)).exit_code == 0


@pytest.mark.parametrize(
    "argv", [("/no/such/program",), ("/etc/passwd",), (), ("true", "a" * 200_000), ("a\x00b",)]
)
async def test_a_program_that_cannot_start_is_a_launch_failure(argv):
    with pytest.raises(LaunchError):
        await run(*argv)


async def test_a_missing_folder_is_a_launch_failure():
    with pytest.raises(LaunchError, match="/no/such/folder"):
        await run("true", cwd="/no/such/folder")


async def test_nothing_of_this_process_environment_is_passed_but_what_was_named(monkeypatch):
    monkeypatch.setenv("PLANTED_SECRET", "s3cret")
    result = await LocalExecutor(ENV).run(
        ("env",), env={"GIVEN": "1"}, cwd="/", timeout_s=10, output_bytes=1 << 16
    )
    assert b"PLANTED_SECRET" not in result.stdout
    assert b"GIVEN=1" in result.stdout


TREE = "echo $$; sleep 300 & echo $!; setsid sleep 300 & echo $!; "


@pytest.mark.parametrize(("end", "timeout_s"), [("sleep 300", 2.0), ("exit 3", 200.0)])
async def test_the_whole_tree_ends_with_the_turn_also_what_made_a_session_of_its_own(
    tmp_path, end, timeout_s
):
    began = time.monotonic()
    result = await run("sh", "-c", TREE + end, cwd=str(tmp_path), timeout_s=timeout_s)
    assert time.monotonic() - began < 60, "it is not held up by what it left running"
    assert result.timed_out is (end != "exit 3")
    if end == "exit 3":
        assert result.exit_code == 3
    pids = [int(line) for line in result.stdout.split()]
    assert len(pids) == 3
    await until_dead(*pids)


async def test_a_process_that_escaped_with_the_pipes_does_not_hold_the_turn_up():
    began = time.monotonic()
    result = await run("sh", "-c", "env -i setsid sleep 300 & echo $!; exit 0")
    try:
        assert (result.exit_code, time.monotonic() - began < 60) == (0, True)
    finally:
        os.kill(int(result.stdout), 9)


async def test_cancelling_ends_the_tree(tmp_path):
    script = TREE.replace("echo $", "echo >>pids $") + "sleep 300"
    task = asyncio.create_task(run("sh", "-c", script, cwd=str(tmp_path)))
    deadline = time.monotonic() + 20
    pids: list[int] = []
    while len(pids) < 3:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
        if (tmp_path / "pids").exists():
            pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_dead(*pids)


async def test_an_output_flood_is_bounded_and_keeps_head_and_tail():
    script = (
        "import sys; sys.stdout.write('HEAD'); sys.stdout.write('x' * 5_000_000); sys.stdout.write('TAIL')"
    )
    result = await run(sys.executable, "-c", script, output_bytes=1000)
    assert result.stdout.startswith(b"HEAD")
    assert result.stdout.endswith(b"TAIL")
    assert b"[4999008 bytes left out]" in result.stdout
    assert len(result.stdout) < 1100


async def test_files_are_written_with_their_folders_and_are_private(tmp_path):
    await LocalExecutor(ENV).write(str(tmp_path / "a/b/c.txt"), b"data")
    assert (tmp_path / "a/b/c.txt").read_bytes() == b"data"
    assert (tmp_path / "a/b/c.txt").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ExecutorError, match="could not be written"):
        await LocalExecutor(ENV).write(str(tmp_path / "a/b/c.txt/d"), b"data")


@given(st.lists(st.binary(max_size=40)), st.integers(1, 60))
def test_bounded_output_is_the_same_however_the_stream_was_cut(chunks, limit):
    whole, cut = BoundedOutput(limit), BoundedOutput(limit)
    whole.add(b"".join(chunks))
    for chunk in chunks:
        cut.add(chunk)
    assert whole.value() == cut.value()
    if sum(map(len, chunks)) <= limit:
        assert cut.value() == b"".join(chunks)
