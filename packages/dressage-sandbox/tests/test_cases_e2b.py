"""C54: commands and servers at E2B, whose own time-outs are not ours."""

from __future__ import annotations

import asyncio
import time

import pytest
from dressage_sandbox import Limits, SandboxError, SandboxSpec
from dressage_sandbox.e2b import E2BProvider
from dressage_sandbox.e2b.standin import E2BStandIn

pytestmark = pytest.mark.heavy

SPEC = SandboxSpec(limits=Limits(timeout_s=20.0))
SERVER = "python3 -m http.server --bind 127.0.0.1 {port}"


@pytest.fixture
async def cloud(provider):
    # One second of E2B's deadlines is 40 ms here: "at 61 s" is 2.44 s from now.
    async with E2BStandIn(provider, second=0.04) as standing_in:
        yield standing_in


@pytest.fixture
async def box(cloud):
    provider = E2BProvider(cloud.config(max_lifetime_s=86_400.0))
    yield await provider.create(SandboxSpec(limits=SPEC.limits, ttl_s=80_000.0))
    await provider.close()
    assert cloud.machines == {}


async def listens(box, port: int) -> bool:
    code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)"
    return (await box.run(["python3", "-c", code])).exit_code == 0


async def until_listening(box, port: int) -> None:
    give_up = time.monotonic() + 10
    while not await listens(box, port):
        assert time.monotonic() < give_up


async def test_c54_the_stand_in_kills_a_background_command_after_the_sdks_default_60_s(cloud, box):
    """As over there, so that the next test proves something."""
    began = time.monotonic()
    handle = await box.handle._sandbox.commands.run("exec sleep 50", background=True)
    with pytest.raises(Exception, match=r"137|exited"):
        await asyncio.wait_for(handle.wait(), 10)
    assert time.monotonic() - began < 10


async def test_c54_a_server_answers_after_the_sdks_default_time_out_of_60_s(box):
    service = await box.start(SERVER.format(port=8100))
    await until_listening(box, 8100)
    await asyncio.sleep(2.8)
    assert service.running
    assert await listens(box, 8100)
    await service.stop()


async def test_c54_after_a_time_out_no_child_keeps_the_port_and_a_second_start_takes_it(box):
    line = f"setsid {SERVER.format(port=8101)} & wait"
    result = await box.run(line, timeout_s=2.0)
    assert (result.timed_out, result.exit_code) == (True, 124)
    assert not await listens(box, 8101)
    service = await box.start(SERVER.format(port=8101))
    await until_listening(box, 8101)
    assert service.running
    await service.stop()


async def test_c54_a_foreground_command_that_timed_out_runs_no_more(box):
    result = await box.run("echo begun; exec sleep 20", timeout_s=2.0)
    assert (result.timed_out, result.stdout) == (True, b"begun\n")
    assert b"sleep 20" not in (await box.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).stdout


async def test_c54_a_command_longer_than_the_sdks_default_is_bounded_by_its_own_time_alone(box):
    result = await box.run("sleep 3; echo done", timeout_s=15)
    assert (result.exit_code, result.stdout) == (0, b"done\n")


async def test_c54_the_loss_of_a_machine_is_an_error_and_never_a_programs_exit_code(cloud, box):
    running = asyncio.create_task(box.run("sleep 60; exit 0"))
    await asyncio.sleep(0.3)
    await cloud.end(box.id)
    with pytest.raises(SandboxError):
        await asyncio.wait_for(running, 15)
