from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from dressage_sandbox import BubblewrapProvider, SandboxSpec
from dressage_sandbox import reaper as reaping
from dressage_sandbox import watch as watching
from dressage_sandbox.owner import Owner, start_time
from dressage_sandbox.owners import Record, Records
from dressage_sandbox.reaper import Reaper, lock
from dressage_sandbox.watch import Watch

WORKER = """
import asyncio, sys
from pathlib import Path
from dressage_sandbox import BubblewrapProvider, SandboxSpec

async def main():
    provider = BubblewrapProvider(runtime_dir=Path(sys.argv[1]), reaper=sys.argv[2] == "on")
    box = await provider.create(SandboxSpec(owner="worker"))
    await box.start("setsid env -i sleep 600 & sleep 600")
    await box.write("file", b"1")
    await box.snapshot()
    print(box.id, flush=True)
    for line in sys.stdin:
        print((await (await provider.create(SandboxSpec())).run(["echo", "ok"])).stdout.decode(), flush=True)
    await provider.close()

asyncio.run(main())
"""


def reapers(folder: Path) -> list[psutil.Process]:
    """Processes that watch this folder: those that have begun (their output leads nowhere) and live."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if words[-1:] == [str(folder)] and process.info["status"] != psutil.STATUS_ZOMBIE and "-c" in words:
            with contextlib.suppress(FileNotFoundError):  # it has ended
                if os.readlink(f"/proc/{process.pid}/fd/1") == os.devnull:  # noqa: PTH115
                    found.append(process)
    return found


class Workers:
    """Owners in processes of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, reaper: str = "on") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", WORKER, str(self.folder), reaper]
        worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.running.append(worker)
        assert worker.stdout is not None
        assert worker.stdout.readline().startswith(b"sb-")
        return worker

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        self.running.remove(worker)
        worker.kill()
        worker.wait()
        for pipe in (worker.stdin, worker.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def workers(runtime_dir: Path) -> Iterator[Workers]:
    made = Workers(runtime_dir)
    yield made
    for worker in list(made.running):
        made.kill(worker)
    for process in reapers(runtime_dir):
        process.kill()
    Records(runtime_dir).reap()


def of(folder: Path, pid: int) -> list[Path]:
    """The files of this owner: records and snapshots, and the one that says it is there."""
    return [path for path in folder.glob("*") if f".{pid}-" in path.name]


def test_what_a_killed_owner_left_is_gone_without_anyone_asking_and_then_the_reaper_too(
    workers: Workers, runtime_dir: Path, wait_until: Callable[[Callable[[], bool], str], None]
) -> None:
    worker = workers.start()
    (record,) = Records(runtime_dir).all()
    groups = [Path(group) for group in record.cgroups]
    assert len(of(runtime_dir, worker.pid)) == 3  # a record, a snapshot and its presence
    assert len(reapers(runtime_dir)) == 1
    os.kill(record.pid, signal.SIGSTOP)  # it cannot see its owner's end
    workers.kill(worker)
    wait_until(lambda: not of(runtime_dir, worker.pid), "files are left")
    wait_until(lambda: start_time(record.pid) is None, "process 1 is left")
    assert [group for group in groups if group.exists()] == []
    give_up = time.monotonic() + reaping.STAY_S + 2 * reaping.TICK_S + 10
    while (reapers(runtime_dir) or runtime_dir.exists()) and time.monotonic() < give_up:
        time.sleep(0.02)
    assert reapers(runtime_dir) == []
    assert not runtime_dir.exists()


def test_one_reaper_serves_all_owners_and_a_live_peer_is_not_touched(
    workers: Workers, runtime_dir: Path, wait_until: Callable[[Callable[[], bool], str], None]
) -> None:
    first, second = workers.start(), workers.start()
    assert len(reapers(runtime_dir)) == 1
    workers.kill(first)
    wait_until(lambda: not of(runtime_dir, first.pid), "files of the killed one are left")
    assert len(of(runtime_dir, second.pid)) == 3
    assert second.stdin is not None
    assert second.stdout is not None
    second.stdin.write(b"again\n")
    second.stdin.flush()
    assert second.stdout.readline() == b"ok\n"
    assert len(reapers(runtime_dir)) == 1


def test_a_reaper_that_was_killed_is_started_anew_by_the_next_create_of_any_owner(
    workers: Workers, runtime_dir: Path, wait_until: Callable[[Callable[[], bool], str], None]
) -> None:
    worker = workers.start()
    (before,) = reapers(runtime_dir)
    before.kill()
    wait_until(lambda: reapers(runtime_dir) == [], "it was killed")
    assert worker.stdin is not None
    worker.stdin.write(b"again\n")
    worker.stdin.flush()
    wait_until(lambda: len(reapers(runtime_dir)) == 1, "no other one came")
    (second,) = reapers(runtime_dir)
    assert second.pid != before.pid
    second.kill()
    wait_until(lambda: reapers(runtime_dir) == [], "it was killed")
    other = workers.start()
    assert len(reapers(runtime_dir)) == 1
    for each in (worker, other):
        workers.kill(each)
    wait_until(lambda: not list(runtime_dir.glob("*.json")), "records are left")


def test_a_caller_that_waits_for_the_end_of_a_pipe_is_not_held_up_and_nothing_of_its_own_is_open(
    runtime_dir: Path, wait_until: Callable[[Callable[[], bool], str], None], workers: Workers
) -> None:
    command = [sys.executable, "-m", "dressage_sandbox.cli", "--runtime-dir", str(runtime_dir), "run"]
    run = subprocess.Popen(
        [*command, "--stream", "--", "sh", "-c", "echo up; sleep 1; echo ok"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert run.stdout is not None
    assert run.stdout.readline() == b"up\n"
    (process,) = reapers(runtime_dir)
    opened = {os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{process.pid}/fd")}  # noqa: PTH115, PTH208
    assert opened - {"anon_inode:[pidfd]"} <= {os.devnull, str(runtime_dir)}
    assert process.cwd() == "/"
    assert set(process.environ()) <= {"LC_CTYPE"}  # which Python sets by itself
    assert os.getsid(process.pid) not in (os.getsid(0), os.getsid(run.pid))
    assert process.pid not in [child.pid for child in psutil.Process().children(recursive=True)]
    assert run.communicate(timeout=20) == (b"ok\n", b"")
    give_up = time.monotonic() + reaping.STAY_S + 2 * reaping.TICK_S + 10
    while runtime_dir.exists() and time.monotonic() < give_up:
        time.sleep(0.02)
    assert not runtime_dir.exists()


async def test_it_stays_while_its_owner_has_no_sandbox_and_ends_soon_after_its_owner_left(
    runtime_dir: Path, workers: Workers, wait_until: Callable[[Callable[[], bool], str], None]
) -> None:
    provider = BubblewrapProvider(runtime_dir=runtime_dir)
    await (await provider.create(SandboxSpec())).terminate()
    (before,) = reapers(runtime_dir)
    await asyncio.sleep(reaping.STAY_S + reaping.TICK_S + 0.2)
    assert [process.pid for process in reapers(runtime_dir)] == [before.pid]
    await provider.create(SandboxSpec())
    await provider.close()
    assert not runtime_dir.exists()  # noqa: ASYNC240
    wait_until(lambda: reapers(runtime_dir) == [], "it stays")
    await provider.close()


async def test_it_can_be_left_out(runtime_dir: Path) -> None:
    provider = BubblewrapProvider(runtime_dir=runtime_dir, reaper=False)
    await provider.create(SandboxSpec())
    assert reapers(runtime_dir) == []
    await provider.close()


async def test_nothing_inside_sees_it_or_can_end_it(runtime_dir: Path, workers: Workers) -> None:
    provider = BubblewrapProvider(runtime_dir=runtime_dir)
    box = await provider.create(SandboxSpec())
    (process,) = reapers(runtime_dir)
    seen = await box.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '; ls -d /dev/shm/* " + str(runtime_dir))
    assert b"reaper" not in seen.stdout
    await box.run(f"kill -9 -1; kill -9 {process.pid}")
    await box.run(["kill", "-9", str(process.pid)])
    assert process.is_running()
    await provider.close()


def test_where_orphans_come_to_the_owner_itself_no_zombie_of_it_stays(
    runtime_dir: Path, subreaper: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Records(runtime_dir)
    records.prepare()
    records.put(Record("sb-1", Owner.this_process(), "", 1.0, 1.0, ()))
    watch = Watch(runtime_dir)
    assert watch.missing
    watch.start()
    (process,) = reapers(runtime_dir)
    assert process.ppid() == os.getpid()
    assert not watch.missing
    process.kill()
    for thread in threading.enumerate():
        if thread.name == "dressage-reaper-ends":
            thread.join(5)
    assert not psutil.pid_exists(process.pid)


def test_many_that_start_one_at_the_same_time_get_one(runtime_dir: Path, workers: Workers) -> None:
    records = Records(runtime_dir)
    records.prepare()
    records.put(Record("sb-1", Owner.this_process(), "", 1.0, 1.0, ()))
    watches = [Watch(runtime_dir) for _ in range(4)]
    threads = [threading.Thread(target=watch.start) for watch in watches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reapers(runtime_dir)) == 1
    assert [watch.missing for watch in watches] == [False] * 4
    records.drop(records.all()[0])


def test_one_that_cannot_be_started_is_told_and_not_tried_at_every_create(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runtime_dir.mkdir(mode=0o700)
    watch = Watch(runtime_dir)
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    watch.start()
    assert "pool reap" in caplog.text
    assert not watch.missing
    assert not watch.watched
    assert not Watch(runtime_dir / "nowhere").watched


def dead_owner() -> Owner:
    me = Owner.this_process()
    return Owner(me.pid, me.started + 1, me.boot)


def test_where_the_folder_has_gone_meanwhile_there_is_nothing_to_watch_and_nothing_to_tell(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Watch(runtime_dir)
    real = watching.subprocess.run

    def later(*arguments: Any, **options: Any) -> Any:
        runtime_dir.rmdir()
        return real(*arguments, **options)

    runtime_dir.mkdir(mode=0o700, exist_ok=True)
    monkeypatch.setattr(watching.subprocess, "run", later)
    watch.start()
    assert not caplog.records


def test_why_one_cannot_be_started_is_told_in_its_own_last_words(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watching, "_PROGRAM", "raise OSError('no room for a reaper')")
    runtime_dir.mkdir(mode=0o700, exist_ok=True)
    Watch(runtime_dir).start()
    (record,) = caplog.records
    assert record.getMessage().endswith("(OSError: no room for a reaper)")


@pytest.mark.parametrize("pidfds", [True, False])
def test_owners_are_watched_without_pidfds_too(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, pidfds: bool
) -> None:
    if not pidfds:

        def refuse(pid: int) -> int:
            raise OSError(38, "Function not implemented")

        monkeypatch.setattr(os, "pidfd_open", refuse)
        monkeypatch.setattr(reaping, "TICK_S", 0.05)
    else:
        monkeypatch.setattr(reaping, "TICK_S", 20.0)  # nothing is looked at before the owner ends
    monkeypatch.setattr(reaping, "STAY_S", 0.0)
    records = Records(runtime_dir)
    records.prepare()
    process = subprocess.Popen(["sleep", "60"])
    owner = Owner(process.pid, start_time(process.pid) or 0, Owner.this_process().boot)
    records.put(Record("sb-1", owner, "", 1.0, 1.0, ()))
    fd = lock(runtime_dir)
    assert fd is not None
    thread = threading.Thread(target=Reaper(runtime_dir, fd).run)
    thread.start()
    time.sleep(0.1)
    assert len(records.all()) == 1
    process.kill()
    process.wait()
    thread.join(5)
    assert not thread.is_alive()
    assert not runtime_dir.exists()
    os.close(fd)


def test_a_folder_that_holds_other_things_is_given_up_and_not_removed(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaping, "STAY_S", 0.0)
    records = Records(runtime_dir)
    records.prepare()
    (runtime_dir / "someone-elses").write_text("1")
    records.put(Record("sb-1", dead_owner(), "", 1.0, 1.0, ()))
    fd = lock(runtime_dir)
    assert fd is not None
    assert lock(runtime_dir) is None
    Reaper(runtime_dir, fd).run()
    assert [path.name for path in runtime_dir.iterdir()] == ["someone-elses"]
    again = lock(runtime_dir)
    assert again is not None  # the lock is free, so that the next owner starts another one
    os.close(again)
    os.close(fd)


def test_an_owner_that_comes_while_the_folder_is_given_up_is_watched_on(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Records(runtime_dir)
    records.prepare()
    (runtime_dir / "someone-elses").write_text("1")
    fd = lock(runtime_dir)
    assert fd is not None
    reaper = Reaper(runtime_dir, fd)
    record = Record("sb-1", Owner.this_process(), "", 1.0, 1.0, ())
    monkeypatch.setattr(records.__class__, "tidy", lambda self: bool(records.put(record)))
    assert not reaper._leave()
    assert lock(runtime_dir) is None
    os.close(fd)


def test_what_cannot_be_removed_is_tried_less_and_less_and_then_left(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[float] = []
    clock = [0.0]
    monkeypatch.setattr(Records, "reap", lambda self: tried.append(clock[0]))
    monkeypatch.setattr(reaping.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(Reaper, "_wait", lambda self, longest_s: clock.__setitem__(0, clock[0] + 1.0))
    records = Records(runtime_dir)
    records.prepare()
    records.put(Record("sb-1", dead_owner(), "", 1.0, 1.0, ()))
    fd = os.open(runtime_dir, os.O_RDONLY)
    Reaper(runtime_dir, fd).run()
    os.close(fd)
    gaps = [b - a for a, b in pairwise(tried)]
    assert gaps == sorted(gaps)
    assert 2 <= max(gaps) <= 61
    assert len(tried) < 20


def test_an_owner_of_another_pid_namespace_is_not_taken_for_dead(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaping, "STAY_S", 0.0)
    me = Owner.this_process()
    other = Owner(me.pid, me.started + 1, me.boot, space=1)
    assert other.alive()
    assert not other.here
    records = Records(runtime_dir)
    records.prepare()
    records.put(Record("sb-1", other, "", 1.0, 1.0, (), pid=me.pid, started=me.started, expires=0.0))
    assert records.reap() == []  # nor is the process of this namespace with its pid killed
    fd = lock(runtime_dir)
    assert fd is not None
    Reaper(runtime_dir, fd).run()  # and its folder is not watched for it for ever
    assert len(records.all()) == 1
    os.close(fd)


async def test_a_hanging_owners_sandbox_is_ended_by_the_reaper_when_its_time_is_over(
    provider: BubblewrapProvider, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dressage_sandbox.owners.OVERDUE_S", 0.0)
    box = await provider.create(SandboxSpec(ttl_s=0.2))
    time.sleep(0.3)  # noqa: ASYNC251 - the owner hangs: its own loop does not run
    fd = lock(runtime_dir)
    assert fd is not None
    Reaper(runtime_dir, fd)._clean(set(), time.monotonic())
    give_up = time.monotonic() + 15
    while start_time(box.pid) is not None and time.monotonic() < give_up:
        time.sleep(0.01)  # noqa: ASYNC251
    assert start_time(box.pid) is None
    os.close(fd)
    await asyncio.sleep(0)
