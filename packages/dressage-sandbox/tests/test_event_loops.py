"""Hosts bring their own event loop: servers and Ray workers run uvloop, with transports of its own kind."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from dressage_sandbox import (
    BubblewrapProvider,
    BubblewrapSandbox,
    PooledProvider,
    SandboxError,
    SandboxGone,
    SandboxSpec,
)


def test_a_sandbox_works_under_uvloop(runtime_dir: Path) -> None:
    async def all_of_it() -> tuple[bytes, bytes]:
        provider = BubblewrapProvider(runtime_dir=runtime_dir, reaper=False)
        box = await provider.create(SandboxSpec())
        said = await box.run(["echo", "alive"], timeout_s=10)
        await box.write("a", b"x" * 100_000)
        read = await box.read("a")
        await provider.close()
        return said.stdout, read

    assert uvloop.run(all_of_it()) == (b"alive\n", b"x" * 100_000)


# Who does not close leaves transports of asyncio's own unclosed, and asyncio says so.
unclosed = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
RELAYED = SandboxSpec(relay="127.0.0.1:9", egress=("example.com:443",))


@unclosed
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_sandbox_ends_with_its_loop_and_the_provider_serves_the_next(
    runtime_dir: Path, run: Callable[..., Any]
) -> None:
    provider = BubblewrapProvider(runtime_dir=runtime_dir, reaper=False, concurrency=1)

    async def first() -> BubblewrapSandbox:
        boxes = await asyncio.gather(*(provider.create(RELAYED) for _ in range(3)))
        await boxes[0].expose(80)
        return boxes[0]

    async def second(old: BubblewrapSandbox) -> None:
        assert not old.alive
        with pytest.raises(SandboxGone, match="event loop"):
            await old.run(["true"])
        assert "event loop" in (await old.status()).why
        boxes = await asyncio.gather(*(provider.create(RELAYED) for _ in range(3)))
        assert (await boxes[2].run(["echo", "new"])).stdout == b"new\n"
        await old.terminate()
        await provider.close()

    old = run(first())
    run(second(old))
    assert provider.live() == []
    assert not runtime_dir.exists()
    gc.collect()


@unclosed
@pytest.mark.parametrize("looked", [False, True], ids=["the pool first", "its provider first"])
def test_a_pool_hands_out_nothing_of_a_loop_that_has_ended(runtime_dir: Path, looked: bool) -> None:
    provider = BubblewrapProvider(runtime_dir=runtime_dir, reaper=False)
    pool = PooledProvider(provider, SandboxSpec(), 2)
    asyncio.run(pool.fill())

    async def second() -> None:
        if looked:
            await provider.probe()
        await pool.fill()
        assert all([(await pool.create(SandboxSpec())).alive, (await pool.create(SandboxSpec())).alive])
        assert pool.misses == 0
        box = await pool.create(SandboxSpec())
        assert (await box.run(["echo", "new"])).stdout == b"new\n"
        await pool.fill()
        await pool.close()

    asyncio.run(second())
    assert provider.live() == []
    gc.collect()


def test_what_another_threads_loop_has_in_use_is_refused_there(runtime_dir: Path) -> None:
    provider = BubblewrapProvider(runtime_dir=runtime_dir, reaper=False)
    found: list[BaseException | None] = []

    def elsewhere(box: BubblewrapSandbox) -> None:
        async def use() -> None:
            for call in (box.run(["true"]), box.read("x"), provider.create(SandboxSpec()), provider.close()):
                with pytest.raises(SandboxError, match="another event loop") as told:
                    await asyncio.wait_for(call, 10)
                found.append(told.value)

        asyncio.run(use())

    async def here() -> None:
        box = await provider.create(SandboxSpec())
        thread = threading.Thread(target=elsewhere, args=(box,))
        thread.start()
        await asyncio.to_thread(thread.join)
        assert (await box.run(["true"])).exit_code == 0
        await provider.close()

    asyncio.run(here())
    assert len(found) == 4
