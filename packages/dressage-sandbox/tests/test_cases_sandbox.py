"""Failure cases seen in public in systems of this kind, by their ids."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from dressage_sandbox import BubblewrapProvider, BubblewrapSandbox, Limits, SandboxSpec
from dressage_sandbox.bwrap import find_bubblewrap
from dressage_sandbox.channel import Channel
from dressage_sandbox.inside.capture import MARK
from dressage_sandbox.owners import Records
from dressage_sandbox.relay import Relay

GRACE_S = 1.5


async def until(condition: Callable[[], bool]) -> None:
    """Look again and again, for a bounded time, without a wait in between that another test would feel."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def inside_processes(box: BubblewrapSandbox) -> list[int]:
    """Processes of the sandbox but its process 1, counted from outside."""
    return [child.pid for child in psutil.Process(box.pid).children(recursive=True)]


@pytest.mark.parametrize(
    "command",
    [
        "echo begun; sleep 300 & wait",
        "echo begun; (sleep 20 &); exit 0",
        "echo begun; setsid sh -c 'while :; do echo x >>grown; sleep 0.05; done' & sleep 60",
        "echo begun; (setsid sh -c '(while :; do echo x >>grown; sleep 0.05; done) &' &) ; sleep 60",
        "echo begun; trap '' TERM INT HUP; env -i setsid sleep 60 >/dev/null 2>&1 & exec sleep 60",
        "echo begun; kill -STOP $$; sleep 60",
    ],
)
@pytest.mark.alone
async def test_c48_a_timeout_ends_the_whole_tree_in_time(box: BubblewrapSandbox, command: str) -> None:
    started = time.monotonic()
    result = await box.run(command, timeout_s=0.5)
    assert time.monotonic() - started < 0.5 + GRACE_S
    assert result.timed_out
    assert result.exit_code == 124
    assert result.stdout == b"begun\n"
    assert inside_processes(box) == []


async def test_c48_a_tree_that_lowers_its_mark_is_ended_too(box: BubblewrapSandbox) -> None:
    tamper = (
        "import os, resource, time\n"
        "soft, hard = resource.getrlimit(15)\n"
        "resource.setrlimit(15, (hard - 1000, hard - 1000))\n"
        "os.fork() or (os.setsid(), os.fork() and os._exit(0))\n"
        "time.sleep(60)\n"
    )
    result = await box.run(["python3", "-c", tamper], timeout_s=0.7)
    assert result.timed_out
    assert inside_processes(box) == []


async def test_c48_a_timeout_leaves_other_commands_and_services_alone(box: BubblewrapSandbox) -> None:
    await box.run("setsid sleep 100 >/dev/null 2>&1 &")
    other = asyncio.ensure_future(box.run("sleep 1; echo fine"))
    assert (await box.run(["sleep", "60"], timeout_s=0.3)).timed_out
    assert (await other).stdout == b"fine\n"
    assert len(inside_processes(box)) == 1  # the service


async def test_c48_a_cancelled_caller_ends_the_tree(box: BubblewrapSandbox) -> None:
    task = asyncio.ensure_future(box.run("sleep 60 & sleep 60"))
    await until(lambda: len(inside_processes(box)) >= 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: inside_processes(box) == [])


WORKER = """
import asyncio, sys
from pathlib import Path
from dressage_sandbox import BubblewrapProvider, SandboxSpec

async def main():
    provider = BubblewrapProvider(runtime_dir=Path(sys.argv[1]), reaper=False)
    await provider.probe()
    print("ready", flush=True)
    sandbox = await provider.create(SandboxSpec())
    print(sandbox.id, flush=True)
    await sandbox.run("setsid sleep 300 & sleep 300", timeout_s=300)

asyncio.run(main())
"""


@pytest.mark.parametrize("delay_ms", [0, 1, 3, 6, 10, 15, 25, 40, 120])
def test_c48_sigkill_of_the_worker_at_any_moment_leaves_no_process(
    delay_ms: int,
    runtime_dir: Path,
    subreaper: None,
    leftovers: Callable[[], list[str]],
    descendants: Callable[[], list[str]],
    wait_until: Callable[[Callable[[], bool], str], None],
) -> None:
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(runtime_dir)], stdout=subprocess.PIPE)
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"ready\n"
    time.sleep(delay_ms / 1000)  # not a wait for something: the moment of the kill is what is varied
    worker.kill()
    worker.wait()
    worker.stdout.close()
    wait_until(lambda: descendants() == [], f"survivors: {descendants()}")
    Records(runtime_dir).reap()
    assert leftovers() == []


FLOOD_LIMIT = 32 << 10


@pytest.mark.parametrize(
    ("command", "total"),
    [
        ("yes | head -c 512M", 1 << 29),
        ("head -c 300000000 /dev/zero | tr '\\0' x", 300_000_000),
    ],
)
async def test_c49_a_flood_is_drained_counted_and_kept_in_bounds(
    box: BubblewrapSandbox, command: str, total: int
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first = await box.run(command, output_bytes=FLOOD_LIMIT)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert first.exit_code == 0
    assert first.stdout_bytes == total
    assert len(first.stdout) <= FLOOD_LIMIT
    assert MARK in first.stdout
    assert grown < 16 << 10, f"the host grew by {grown} KiB"


async def test_c49_an_endless_loop_to_stderr_ends_at_its_time(box: BubblewrapSandbox) -> None:
    results = [await box.run("yes >&2", timeout_s=1.0, output_bytes=4096) for _ in range(2)]
    assert all(r.timed_out and r.stderr_bytes > 1 << 20 and len(r.stderr) <= 4096 for r in results)
    assert results[0].stderr == results[1].stderr


async def test_c49_a_background_process_that_prints_after_the_return_changes_nothing(
    box: BubblewrapSandbox,
) -> None:
    result = await box.run("(while :; do echo late; sleep 0.01; done) >/dev/null 2>&1 & echo now")
    assert result.stdout == b"now\n"
    assert (await box.run(["echo", "next"])).stdout == b"next\n"


@pytest.mark.alone
@pytest.mark.parametrize("use_cgroups", [True, False], ids=["cgroups", "rlimits"])
async def test_c51_a_fork_bomb_stays_in_its_own_slot(
    runtime_dir: Path, leftovers: Callable[[], list[str]], use_cgroups: bool
) -> None:
    provider = BubblewrapProvider(runtime_dir=runtime_dir, reaper=False, use_cgroups=use_cgroups)
    assert (await provider.probe()).pids != "none"
    bomb_box, neighbour = [await provider.create(SandboxSpec(limits=Limits(pids=40))) for _ in range(2)]
    bomb = asyncio.ensure_future(bomb_box.run("while :; do (sleep 60 &) ; done", timeout_s=60))
    await until(lambda: len(inside_processes(bomb_box)) >= 30)
    started = time.monotonic()
    assert (await neighbour.run(["echo", "ok"])).stdout == b"ok\n"
    assert time.monotonic() - started < 1.0
    assert len(inside_processes(bomb_box)) <= 40
    started = time.monotonic()
    await bomb_box.terminate()
    assert time.monotonic() - started < 2.0
    with pytest.raises(ConnectionError):
        await bomb
    assert (await neighbour.run(["echo", "ok"])).stdout == b"ok\n"
    await provider.close()
    assert leftovers() == []


@pytest.mark.alone
async def test_c51_a_timeout_ends_a_fork_bomb_and_its_sandbox_is_usable_again(
    provider: BubblewrapProvider,
) -> None:
    box = await provider.create(SandboxSpec(limits=Limits(pids=40)))
    started = time.monotonic()
    result = await box.run(":() { : | : & }; :", timeout_s=0.5)
    assert time.monotonic() - started < 0.5 + 2 * GRACE_S
    assert result.exit_code != 1
    full = await box.run("while :; do (sleep 60 &) ; done", timeout_s=0.5)
    assert full.timed_out
    assert inside_processes(box) == []
    assert (await box.run(["echo", "ok"])).stdout == b"ok\n"


async def test_c51_a_command_in_a_full_sandbox_is_an_answer_and_not_a_crash(
    provider: BubblewrapProvider,
) -> None:
    box = await provider.create(SandboxSpec(limits=Limits(pids=8)))
    await box.run("for i in 1 2 3 4 5 6 7 8; do sleep 60 >/dev/null 2>&1 & done; true")
    last = asyncio.ensure_future(box.run(["sleep", "60"]))  # takes the place of the shell above
    await until(lambda: len(inside_processes(box)) == 7)
    result = await box.run(["true"])
    last.cancel()
    assert result.exit_code == 126
    assert b"limit" in result.stderr


FORBIDDEN = """
import asyncio, sys
from pathlib import Path
from dressage_sandbox import BubblewrapProvider, SandboxSpec, UserNamespacesForbidden

async def main():
    provider = BubblewrapProvider(runtime_dir=Path(sys.argv[1]), reaper=False)
    try:
        sandbox = await provider.create(SandboxSpec())
        print("RAN UNSANDBOXED", (await sandbox.run(["id"])).stdout)
    except UserNamespacesForbidden as error:
        print("refused:", error)
        print(await provider.close())

asyncio.run(main())
"""


@pytest.mark.parametrize("uid", ["0", "1000"])
def test_e13_where_user_namespaces_are_forbidden_nothing_runs_and_the_fix_is_named(
    tmp_path: Path, uid: str
) -> None:
    forbidding = [str(find_bubblewrap().path), "--unshare-user", "--disable-userns", "--dev-bind", "/", "/"]
    forbidding += ["--uid", uid]
    done = subprocess.run(
        [*forbidding, "--", sys.executable, "-c", FORBIDDEN, str(tmp_path / "runtime")],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.stdout.startswith("refused: user namespaces are not allowed here"), done.stdout + done.stderr
    assert "To allow them: " in done.stdout
    assert "sysctl" in done.stdout or "container" in done.stdout
    assert "RAN UNSANDBOXED" not in done.stdout


def test_e13_a_root_that_cannot_drop_its_uid_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs the machine's root")
    done = subprocess.run(
        [str(find_bubblewrap().path), "--unshare-user", "--dev-bind", "/", "/", "--cap-add", "ALL", "--",
         sys.executable, "-c", FORBIDDEN, str(tmp_path / "runtime")],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert "ProviderUnavailable: this process is root" in done.stderr, done.stdout + done.stderr


async def test_e14_orphans_are_reaped_inside_and_exit_codes_kept(box: BubblewrapSandbox) -> None:
    for code in range(40):
        result = await box.run(f"(sleep 0 &) >/dev/null 2>&1; (setsid true &); exit {code}")
        assert result.exit_code == code
    await until(lambda: inside_processes(box) == [])  # a zombie would be one of them


async def test_e14_sandboxes_leave_no_zombie_in_a_host_that_must_reap_for_itself(
    provider: BubblewrapProvider, subreaper: None
) -> None:
    before = {child.pid for child in psutil.Process().children()}
    for _ in range(4):
        boxes = await asyncio.gather(*[provider.create(SandboxSpec()) for _ in range(8)])
        results = await asyncio.gather(*[b.run(f"exit {i}") for i, b in enumerate(boxes)])
        assert [r.exit_code for r in results] == list(range(8))
        await asyncio.gather(*[b.terminate() for b in boxes])
    children = [child for child in psutil.Process().children() if child.pid not in before]
    assert [child for child in children if child.status() == psutil.STATUS_ZOMBIE] == []


@pytest.mark.parametrize("steps", range(0, 24, 2))
async def test_c56_a_create_that_is_cancelled_at_any_await_leaves_nothing(
    runtime_dir: Path, leftovers: Callable[[], list[str]], steps: int
) -> None:
    provider = BubblewrapProvider(runtime_dir=runtime_dir, reaper=False)
    await provider.probe()
    task = asyncio.ensure_future(provider.create(SandboxSpec(relay="127.0.0.1:9")))
    for _ in range(steps):
        await asyncio.sleep(0.001)
    task.cancel()
    try:
        sandbox = await task
    except asyncio.CancelledError:
        assert provider.live() == []
    else:  # it was ready before the cancellation
        await sandbox.terminate()
    assert provider.live() == []
    await provider.close()
    assert leftovers() == []


@pytest.mark.parametrize("where", ["relay", "channel"])
async def test_c56_a_create_that_is_cancelled_once_the_relay_socket_is_here_closes_it(
    runtime_dir: Path, leftovers: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    reached, listeners = asyncio.Event(), list[socket.socket]()
    start = Relay.start

    async def held(*_: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    async def started(relay: Relay, listener: socket.socket) -> None:
        listeners.append(listener)
        if where == "relay":
            await held()
        await start(relay, listener)

    monkeypatch.setattr(Relay, "start", started)
    if where == "channel":
        monkeypatch.setattr(Channel, "open", held)
    provider = BubblewrapProvider(runtime_dir=runtime_dir, reaper=False)
    task = asyncio.ensure_future(provider.create(SandboxSpec(relay="127.0.0.1:9")))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [listener.fileno() for listener in listeners] == [-1]
    await provider.close()
    assert leftovers() == []


async def test_c56_a_second_cancellation_does_not_stop_the_first_ones_cleaning(
    runtime_dir: Path, leftovers: Callable[[], list[str]]
) -> None:
    provider = BubblewrapProvider(runtime_dir=runtime_dir, reaper=False)
    await provider.probe()
    task = asyncio.ensure_future(provider.create(SandboxSpec()))
    await until(lambda: provider.live() != [])
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await provider.close()
    assert leftovers() == []


@pytest.fixture
def killed_worker(runtime_dir: Path, subreaper: None) -> str:
    """Id of a sandbox whose owner was killed."""
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(runtime_dir)], stdout=subprocess.PIPE)
    assert worker.stdout is not None
    worker.stdout.readline()
    sandbox_id = worker.stdout.readline().decode().strip()
    worker.kill()
    worker.wait()
    worker.stdout.close()
    return sandbox_id


async def test_c56_the_reaper_removes_what_a_dead_owner_left_and_not_a_peers(
    provider: BubblewrapProvider,
    killed_worker: str,
    runtime_dir: Path,
    descendants: Callable[[], list[str]],
) -> None:
    records = Records(runtime_dir)
    left = next(record for record in records.all() if record.id == killed_worker)
    box = await provider.create(SandboxSpec())  # a new provider reaps when it starts
    assert killed_worker not in [record.id for record in records.all()]
    assert not any(Path(group).exists() for group in left.cgroups)  # noqa: ASYNC240 - a look at the kernel
    records.put(left)
    assert records.reap() == [killed_worker]
    assert records.reap() == []
    assert (await box.run(["echo", "alive"])).stdout == b"alive\n"
    await until(lambda: len(descendants()) == 2)  # bubblewrap and process 1 of the peer


async def test_c56_a_sandbox_whose_time_is_over_ends_by_itself(provider: BubblewrapProvider) -> None:
    box = await provider.create(replace(SandboxSpec(), ttl_s=0.3))
    with pytest.raises(ConnectionError, match="time to live"):
        await box.run(["sleep", "20"])
    await box.terminate()
    assert provider.live() == []
