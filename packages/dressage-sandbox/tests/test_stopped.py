"""A program inside that stops every process it may, again and again: calls from outside end in time."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from pathlib import Path

import pytest
from dressage_sandbox import BubblewrapProvider, BubblewrapSandbox, SandboxFileError, SandboxSpec, transfers

_STOPPER = """
import os, signal
open('begun', 'w')
while True:
    try: os.kill(-1, signal.SIGSTOP)
    except OSError: pass
"""
_TRIES = 8
"""A packing may have ended before it is stopped."""


@pytest.fixture
async def stormy(provider: BubblewrapProvider) -> BubblewrapSandbox:
    """A sandbox in which whatever starts is stopped at once."""
    box = await provider.create(SandboxSpec())
    folders = " ".join(f"/tmp/{number} /dev/shm/{number}" for number in range(_TRIES))
    await box.run(f"head -c 50000000 /dev/urandom >large; mkdir {folders}")
    await box.start(["python3", "-c", _STOPPER])
    while not any(entry.name == "begun" for entry in await box.list(".")):
        await asyncio.sleep(0.01)
    return box


@pytest.mark.alone
async def test_commands_that_are_stopped_before_they_begin_still_time_out(stormy: BubblewrapSandbox) -> None:
    for _ in range(5):
        begun = time.monotonic()
        result = await stormy.run(["echo", "ok"], timeout_s=0.3)
        assert time.monotonic() - begun < 3.0
        assert (result.exit_code, result.timed_out) in ((124, True), (0, False))
    assert await stormy.read("/etc/hosts")
    assert stormy.alive


async def test_other_calls_are_answered_while_a_command_cannot_begin(stormy: BubblewrapSandbox) -> None:
    stuck = [asyncio.ensure_future(stormy.run(["echo"], timeout_s=20)) for _ in range(3)]
    await asyncio.sleep(0.1)
    async with asyncio.timeout(15):  # not as long as those wait
        await stormy.write("small", b"x")
        assert await stormy.read("small") == b"x"
    for each in stuck:
        each.cancel()
    await asyncio.gather(*stuck, return_exceptions=True)
    assert stormy.alive


async def test_a_folder_whose_packing_is_stopped_is_an_error_and_not_a_wait(
    stormy: BubblewrapSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "STALL_S", 0.3)

    async def pack() -> None:
        for _ in range(_TRIES):
            await stormy.pack(".", tmp_path / "kept.tar")

    with pytest.raises(SandboxFileError) as caught:
        await pack()
    assert caught.value.errno == errno.ETIMEDOUT
    assert not [entry.name for entry in os.scandir(tmp_path) if entry.name.endswith(".part")]


async def test_an_archive_whose_unpacking_is_stopped_is_an_error_and_not_a_wait(
    provider: BubblewrapProvider, stormy: BubblewrapSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = await provider.create(SandboxSpec())
    await calm.run("head -c 50000000 /dev/urandom >large")
    await calm.pack(".", tmp_path / "whole.tar")
    monkeypatch.setattr(transfers, "STALL_S", 0.3)
    monkeypatch.setattr(transfers, "_SLOWEST", 1 << 40)

    async def unpack() -> None:
        for number in range(_TRIES):
            await stormy.unpack(tmp_path / "whole.tar", f"/{('tmp', 'dev/shm')[number % 2]}/{number}")

    with pytest.raises(SandboxFileError) as caught:
        await unpack()
    assert caught.value.errno == errno.ETIMEDOUT
