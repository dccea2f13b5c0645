from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from dressage_sandbox import BubblewrapProvider, InvalidSpec, Mount, PooledProvider, SandboxError, SandboxSpec


async def test_a_warm_sandbox_is_handed_out_at_once_and_never_again(provider: BubblewrapProvider) -> None:
    spec = SandboxSpec(env={"A": "1"})
    pool = PooledProvider(provider, spec, 3)
    await pool.fill()
    assert pool.ready == 3
    warm = set(provider.live())
    first = await pool.create(replace(spec, owner="me", ttl_s=60))
    assert first.id in warm
    assert first.record.label == "me"
    await first.write("x", b"1")
    await first.terminate()
    await pool.fill()
    others = [await pool.create(spec) for _ in range(3)]
    assert first.id not in [box.id for box in others]
    assert [await box.list(".") for box in others] == [[], [], []]
    assert (pool.hits, pool.misses) == (4, 0)
    await pool.close()


async def test_an_empty_pool_and_another_spec_are_served_on_the_spot(provider: BubblewrapProvider) -> None:
    pool = PooledProvider(provider, SandboxSpec(), 1)
    boxes = [await pool.create(SandboxSpec()), await pool.create(SandboxSpec(env={"OTHER": "1"}))]
    assert [(await box.run("echo $OTHER")).stdout for box in boxes] == [b"\n", b"1\n"]
    assert pool.hits == 0
    await pool.close()


async def test_a_warm_sandbox_that_died_is_not_handed_out(provider: BubblewrapProvider) -> None:
    pool = PooledProvider(provider, SandboxSpec(), 2)
    await pool.fill()
    await provider._sandboxes[provider.live()[0]].terminate()
    boxes = [await pool.create(SandboxSpec()) for _ in range(2)]
    assert [(await box.run(["echo", "ok"])).stdout for box in boxes] == [b"ok\n"] * 2
    await pool.close()


async def test_one_that_dies_while_it_waits_is_replaced_without_being_asked_for(
    provider: BubblewrapProvider,
) -> None:
    pool = PooledProvider(provider, SandboxSpec(), 2)
    await pool.fill()
    before = set(provider.live())
    os.kill(provider._sandboxes[provider.live()[0]].pid, signal.SIGKILL)
    async with asyncio.timeout(10):
        while pool.ready != 2 or set(provider.live()) == before:
            await asyncio.sleep(0.01)
    boxes = [await pool.create(SandboxSpec()) for _ in range(2)]
    assert [(await box.run(["echo", "ok"])).stdout for box in boxes] == [b"ok\n"] * 2
    assert pool.misses == 0
    await pool.close()


async def test_forks_of_one_snapshot_are_kept_ready(provider: BubblewrapProvider) -> None:
    box = await provider.create(SandboxSpec())
    await box.write("a/file", b"as it was")
    spec = SandboxSpec(snapshot=(await box.snapshot()).id)
    pool = PooledProvider(provider, spec, 2)
    await pool.fill()
    forks = [await pool.create(spec) for _ in range(2)]
    await forks[0].write("a/file", b"changed")
    assert await forks[1].read("a/file") == b"as it was"
    assert pool.misses == 0
    await pool.close()


async def test_the_time_to_live_begins_with_the_lease(provider: BubblewrapProvider) -> None:
    spec = SandboxSpec(ttl_s=2.0)
    pool = PooledProvider(provider, spec, 1)
    await pool.fill()
    await asyncio.sleep(2.1)  # longer than the time to live
    box = await pool.create(spec)
    assert (await box.run(["echo", "ok"])).stdout == b"ok\n"
    with pytest.raises(ConnectionError, match="time to live"):
        await box.run(["sleep", "20"])
    await pool.close()


async def test_a_closed_pool_serves_no_one_and_leaves_nothing(provider: BubblewrapProvider) -> None:
    pool = PooledProvider(provider, SandboxSpec(), 4)
    filling = asyncio.ensure_future(pool.fill())
    while not pool._tasks:
        await asyncio.sleep(0)
    await pool.close()
    with pytest.raises(SandboxError):
        await filling
    with pytest.raises(SandboxError):
        await pool.create(SandboxSpec())
    assert provider.live() == []


async def test_a_spec_of_which_no_sandbox_can_be_made_is_told_and_not_tried_for_ever(
    provider: BubblewrapProvider, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "mounted"
    spec = SandboxSpec(mounts=(Mount(folder, "/data"),))
    pool = PooledProvider(provider, spec, 2)
    for _ in range(2):
        async with asyncio.timeout(10):
            with pytest.raises(InvalidSpec, match="does not exist"):
                await pool.fill()
    with pytest.raises(InvalidSpec):
        await pool.create(spec)
    assert pool.leased == 0
    folder.mkdir(mode=0o755)
    (folder / "file").write_text("x")
    await pool.fill()  # what was missing may have come meanwhile
    assert (await (await pool.create(spec)).run(["cat", "/data/file"])).stdout == b"x"
    assert caplog.records == []
    await pool.close()


def test_a_pool_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="size=0"):
        PooledProvider(BubblewrapProvider(), SandboxSpec(), 0)
