from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from dressage_sandbox import BubblewrapProvider, SandboxError, SandboxGone, SandboxSpec, SandboxStartFailed
from dressage_sandbox.groups import sweep
from dressage_sandbox.owner import Owner, group_name, start_time
from dressage_sandbox.owners import Record, Records


async def test_a_transient_failure_of_create_leaves_nothing_and_the_next_one_works(
    provider: BubblewrapProvider, monkeypatch: pytest.MonkeyPatch, runtime_dir: Path
) -> None:
    machine = await provider._prepare()
    python = machine.launcher._python
    machine.launcher._python = "/usr/bin/no-such-python"
    with pytest.raises(SandboxStartFailed, match="no-such-python"):
        await provider.create(SandboxSpec())
    assert provider.live() == []
    assert Records(runtime_dir).all() == []
    machine.launcher._python = python
    assert (await (await provider.create(SandboxSpec())).run(["true"])).exit_code == 0


async def test_an_inside_that_dies_is_noticed_by_every_call(provider: BubblewrapProvider) -> None:
    box = await provider.create(SandboxSpec())
    running = asyncio.ensure_future(box.run(["sleep", "60"]))
    await box.run(["true"])
    os.kill(box.pid, signal.SIGKILL)
    with pytest.raises(SandboxGone):
        await running
    with pytest.raises(SandboxGone):
        await box.run(["true"])
    await box.terminate()
    assert provider.live() == []


async def test_an_agent_that_stops_answering_is_given_up(
    provider: BubblewrapProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dressage_sandbox._commands.GUARD_S", 0.2)
    box = await provider.create(SandboxSpec())
    os.kill(box.pid, signal.SIGSTOP)  # from outside it can be stopped
    with pytest.raises(SandboxGone, match="stopped answering"):
        await box.run(["true"], timeout_s=0.1)
    await box.terminate()


@pytest.mark.alone
async def test_terminate_is_bounded_under_load_and_frees_all(provider: BubblewrapProvider) -> None:
    box = await provider.create(SandboxSpec())
    running = [asyncio.ensure_future(box.run("yes & yes & yes & wait")) for _ in range(8)]
    await box.run(["true"])
    started = time.monotonic()
    await box.terminate()
    assert time.monotonic() - started < 2.0
    results = await asyncio.gather(*running, return_exceptions=True)
    assert all(isinstance(result, SandboxGone) for result in results)


async def test_a_closed_provider_makes_no_more(provider: BubblewrapProvider) -> None:
    creating = [asyncio.ensure_future(provider.create(SandboxSpec())) for _ in range(6)]
    await asyncio.sleep(0.01)
    await provider.close()
    results = await asyncio.gather(*creating, return_exceptions=True)
    assert all(isinstance(r, SandboxError) or not r.alive for r in results)  # type: ignore[union-attr]
    assert provider.live() == []
    with pytest.raises(SandboxStartFailed, match="closed"):
        await provider.create(SandboxSpec())


async def test_descriptors_do_not_grow_with_sandboxes(provider: BubblewrapProvider) -> None:
    async def cycle() -> int:
        box = await provider.create(SandboxSpec(relay="127.0.0.1:9"))
        await box.run(["true"])
        await box.terminate()
        await asyncio.sleep(0)
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    first = await cycle()
    assert [await cycle() for _ in range(5)][-1] <= first


async def test_a_thread_that_ends_does_not_take_its_sandbox_along(provider: BubblewrapProvider) -> None:
    made: list[str] = []

    async def use(folder: Path) -> None:
        other = BubblewrapProvider(runtime_dir=folder, reaper=False)
        box = await other.create(SandboxSpec())
        made.append((await box.run(["echo", "ok"])).stdout.decode())
        await other.close()

    thread = threading.Thread(target=lambda: asyncio.run(use(provider._records.folder)))
    thread.start()
    await asyncio.to_thread(thread.join)
    assert made == ["ok\n"]


FORGETFUL = """
import asyncio, sys
from pathlib import Path
from dressage_sandbox import BubblewrapProvider, SandboxSpec

async def main():
    provider = BubblewrapProvider(runtime_dir=Path(sys.argv[1]), reaper=False)
    sandbox = await provider.create(SandboxSpec())
    print(sandbox.id, flush=True)
    if sys.argv[2] == "wait":
        await sandbox.run("sleep 300 & sleep 300", timeout_s=300)

asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["exit", "wait"])
def test_an_owner_that_exits_or_is_interrupted_without_closing_leaves_no_process(
    how: str,
    runtime_dir: Path,
    subreaper: None,
    leftovers: Callable[[], list[str]],
    descendants: Callable[[], list[str]],
    wait_until: Callable[[Callable[[], bool], str], None],
) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", FORGETFUL, str(runtime_dir), how],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert owner.stdout is not None
    assert owner.stdout.readline().startswith(b"sb-")
    if how == "wait":
        owner.send_signal(signal.SIGINT)
    owner.wait(timeout=30)
    owner.stdout.close()
    wait_until(lambda: descendants() == [], f"survivors: {descendants()}")
    Records(runtime_dir).reap()
    assert leftovers() == []


def test_a_forked_copy_of_the_owner_does_not_keep_a_sandbox_alive(
    runtime_dir: Path, subreaper: None, wait_until: Callable[[Callable[[], bool], str], None]
) -> None:
    fork = "import os, time; copy = os.fork() or time.sleep(60); print(sandbox.id, copy, flush=True)"
    code = FORGETFUL.replace("print(sandbox.id, flush=True)", fork)
    owner = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, str(runtime_dir), "wait"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert owner.stdout is not None
    copy = int(owner.stdout.readline().split()[1])
    (record,) = Records(runtime_dir).all()
    owner.kill()
    owner.wait()
    owner.stdout.close()
    wait_until(lambda: start_time(record.pid) != record.started, "the sandbox lives on")
    os.kill(copy, signal.SIGKILL)
    os.waitpid(copy, 0)
    Records(runtime_dir).reap()


def test_a_sandbox_that_cannot_see_its_owners_end_is_reaped(
    runtime_dir: Path, subreaper: None, leftovers: Callable[[], list[str]]
) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", FORGETFUL, str(runtime_dir), "wait"], stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    owner.stdout.readline()
    (record,) = Records(runtime_dir).all()
    os.kill(record.pid, signal.SIGSTOP)  # as if it were stuck in the kernel
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert start_time(record.pid) == record.started
    assert Records(runtime_dir).reap() == [record.id]
    assert start_time(record.pid) is None
    give_up = time.monotonic() + 15
    while leftovers() != [] and time.monotonic() < give_up:
        time.sleep(0.01)
    assert leftovers() == []


async def test_the_reaper_ends_what_a_hanging_owner_left_beyond_its_time_and_nothing_before(
    provider: BubblewrapProvider, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = await provider.create(SandboxSpec(ttl_s=2.0))
    other = await provider.create(SandboxSpec(ttl_s=60))
    running = asyncio.ensure_future(box.run(["sleep", "60"]))
    await other.run(["true"])
    monkeypatch.setattr("dressage_sandbox.owners.OVERDUE_S", 0.1)
    assert Records(runtime_dir).reap() == []  # in time
    assert start_time(box.pid) is not None
    time.sleep(2.2)  # noqa: ASYNC251 - the owner hangs: its own loop does not run
    assert Records(runtime_dir).reap() == []  # the record is the owner's to remove
    give_up = time.monotonic() + 15
    while start_time(box.pid) is not None and time.monotonic() < give_up:
        time.sleep(0.01)  # noqa: ASYNC251
    assert start_time(box.pid) is None
    with pytest.raises(SandboxGone):
        await running
    assert (await other.run(["echo", "ok"])).stdout == b"ok\n"


async def test_a_heartbeat_moves_the_reapers_time_on_too(
    provider: BubblewrapProvider, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dressage_sandbox.owners.OVERDUE_S", 0.0)
    box = await provider.create(SandboxSpec(ttl_s=1.0))
    await box.renew(60)
    await asyncio.sleep(1.1)
    Records(runtime_dir).reap()
    assert (await box.run(["echo", "ok"])).stdout == b"ok\n"


def test_an_owner_is_told_from_a_later_process_with_its_pid() -> None:
    me = Owner.this_process()
    assert me.alive()
    assert not Owner(me.pid, me.started + 1, me.boot).alive()
    assert not Owner(me.pid, me.started, "another boot").alive()


def test_empty_groups_of_dead_owners_are_swept_and_no_others(tmp_path: Path) -> None:
    me = Owner.this_process()
    mine = tmp_path / group_name(me, "sb-1")
    dead = tmp_path / group_name(Owner(me.pid, me.started + 1, me.boot), "sb-2")
    used = tmp_path / group_name(Owner(me.pid, me.started + 1, me.boot), "sb-3")
    other = tmp_path / "someone-elses"
    for folder in (mine, dead, used / "not empty", other):
        folder.mkdir(parents=True)
    assert sweep([tmp_path, tmp_path]) == [dead]
    assert sorted(tmp_path.iterdir()) == sorted([mine, used, other])


def test_records_that_are_not_whole_are_dropped(runtime_dir: Path) -> None:
    records = Records(runtime_dir)
    records.prepare()
    record = Record("sb-1", Owner.this_process(), "me", 1.0, 2.0, ("/x",))
    records.put(record)
    (runtime_dir / "sb-2.json").write_text('{"id": ')
    (runtime_dir / "sb-3.json").write_text('{"owner": 3}')
    assert records.all() == [record]
    assert [path.name for path in runtime_dir.iterdir()] == [f"sb-1.{record.owner.text}.json"]
    assert records.reap() == []


def test_a_runtime_folder_that_others_can_write_is_refused(runtime_dir: Path) -> None:
    runtime_dir.mkdir()
    runtime_dir.chmod(0o777)
    with pytest.raises(SandboxStartFailed, match="not private"):
        Records(runtime_dir).prepare()
    with pytest.raises(SandboxStartFailed, match="another runtime_dir"):
        Records(Path("/proc/nowhere")).prepare()
