"""Commands that use the whole of a sandbox's CPU limit up hold up neither its files nor its end."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from dressage_sandbox import BubblewrapProvider, BubblewrapSandbox, Limits, SandboxSpec
from dressage_sandbox.groups import kill_group
from dressage_sandbox.quota import Quota


async def limited(provider: BubblewrapProvider) -> BubblewrapSandbox:
    if (await provider.probe()).cpu == "none":
        pytest.skip("no CPU control group can be written here")
    return await provider.create(SandboxSpec(limits=Limits(cpus=0.5)))


def is_lifted(box: BubblewrapSandbox) -> bool:
    assert box.quota is not None
    text = box.quota.file.read_text().strip()
    assert text in (box.quota.held, box.quota.free)
    return text == box.quota.free


async def until(box: BubblewrapSandbox, lifted: bool) -> None:
    async with asyncio.timeout(20):
        while is_lifted(box) != lifted:
            await asyncio.sleep(0.01)


async def test_it_is_lifted_while_process_1_alone_is_waited_for(provider: BubblewrapProvider) -> None:
    box = await limited(provider)
    assert not is_lifted(box)
    os.kill(box.pid, signal.SIGSTOP)
    calls = [asyncio.ensure_future(c) for c in (box.write("a", b"1"), box.list("."), box.quiet())]
    await until(box, lifted=True)
    calls[0].cancel()
    os.kill(box.pid, signal.SIGCONT)
    await asyncio.gather(*calls, return_exceptions=True)
    assert not is_lifted(box)


async def test_a_command_has_no_more_than_it_until_its_time_is_over(provider: BubblewrapProvider) -> None:
    box = await limited(provider)
    service = await box.start("trap '' TERM; while :; do sleep 0.1; done")
    running = asyncio.ensure_future(box.run(["sleep", "60"], timeout_s=2))
    await asyncio.sleep(0)
    assert not is_lifted(box)
    os.kill(box.pid, signal.SIGSTOP)
    await until(box, lifted=True)
    os.kill(box.pid, signal.SIGCONT)
    assert (await running).timed_out
    assert not is_lifted(box)
    stopping = asyncio.ensure_future(service.stop(grace_s=0.2))
    await until(box, lifted=True)
    await stopping
    await until(box, lifted=False)


async def test_what_uses_a_small_share_up_neither_loses_nor_outlives_its_sandbox(
    provider: BubblewrapProvider,
) -> None:
    if (await provider.probe()).cpu == "none":
        pytest.skip("no CPU control group can be written here")
    box = await provider.create(SandboxSpec(limits=Limits(cpus=0.02)))
    busy = "for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; wait"
    assert (await box.run(busy, timeout_s=0.5)).timed_out
    running = asyncio.ensure_future(box.run(busy, timeout_s=20))
    await box.write("x", b"1")
    await box.terminate()
    await asyncio.gather(running, return_exceptions=True)
    assert provider.live() == []


def test_lifts_are_counted_and_one_of_a_group_that_has_gone_is_nothing(tmp_path: Path) -> None:
    file = tmp_path / "cpu.max"
    file.write_text("held")
    quota = Quota(file, "held", "free")
    for _ in range(2):
        quota.lift()
    quota.hold()
    assert file.read_text() == "free"
    quota.hold()
    assert file.read_text() == "held"
    file.unlink()
    quota.lift()
    quota.hold()
    assert not file.exists()


@pytest.mark.parametrize(("name", "free"), [("cpu.max", "max"), ("cpu.cfs_quota_us", "-1")])
def test_what_is_killed_may_take_the_time_that_it_dies_of(tmp_path: Path, name: str, free: str) -> None:
    (tmp_path / "cgroup.procs").write_text("")
    (tmp_path / name).write_text("")
    kill_group([tmp_path])
    assert (tmp_path / name).read_text() == free


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open("/dev/null", os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken[0] + 1, 256), hard))
    try:
        with suppress(OSError):  # too many open files
            while True:
                taken.append(os.dup(taken[0]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)


async def test_without_a_descriptor_calls_and_the_end_are_as_ever_and_the_limit_is_held_later(
    provider: BubblewrapProvider,
) -> None:
    box, other = await limited(provider), await limited(provider)
    assert box.quota is not None
    box.quota.lift()
    with no_descriptor_left():
        box.quota.hold()
        await box.write("a", b"1")
        assert await box.read("a") == b"1"
        await other.terminate()
        assert provider.live() == [box.record.id]
    await until(box, lifted=False)


async def test_a_limit_that_could_not_be_lifted_is_lifted_as_soon_as_it_can_be(tmp_path: Path) -> None:
    file = tmp_path / "cpu.max"
    file.mkdir()
    quota = Quota(file, "held", "free")
    quota.lift()
    file.rmdir()
    file.write_text("held")
    async with asyncio.timeout(20):
        while file.read_text() != "free":
            await asyncio.sleep(0.01)
