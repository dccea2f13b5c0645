"""Numbers that no system call takes: a refusal, and the sandbox lives on. A model chooses some of them."""

from __future__ import annotations

import math

import pytest
from dressage_sandbox import BubblewrapSandbox, InvalidSpec
from dressage_sandbox.errors import SandboxFileError
from dressage_sandbox.inside import wire
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EDGES = [0, 1, 2**31, 2**32, 2**53, 2**62]


@pytest.mark.parametrize("number", [-1, 2**62 + 1, 2**63, 2**64, 10**30])
async def test_parts_that_no_file_has_are_refused_by_name(box: BubblewrapSandbox, number: int) -> None:
    await box.write("file", b"data")
    with pytest.raises(InvalidSpec, match="offset"):
        await box.read("file", offset=number)
    with pytest.raises(InvalidSpec, match="max_bytes"):
        await box.read("file", max_bytes=number)
    assert await box.read("file") == b"data"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(offset=st.sampled_from(EDGES) | st.integers(0, 2**62), most=st.sampled_from(EDGES) | st.integers(0, 9))
async def test_any_part_that_a_file_could_have_is_answered(
    box: BubblewrapSandbox, offset: int, most: int
) -> None:
    await box.write("file", b"data")
    assert await box.read("file", offset=offset, max_bytes=most) == b"data"[offset : offset + most]


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf])
async def test_time_outs_that_are_none_are_refused_by_name(box: BubblewrapSandbox, seconds: float) -> None:
    with pytest.raises(InvalidSpec, match="timeout_s"):
        await box.run(["true"], timeout_s=seconds)
    service = await box.start(["sleep", "60"])
    if seconds != 0:
        with pytest.raises(InvalidSpec, match="grace_s"):
            await service.stop(grace_s=seconds)
    assert (await box.run(["echo", "ok"])).stdout == b"ok\n"


@pytest.mark.parametrize("seconds", [1e7, 1e12, 1e18])
async def test_a_time_out_of_many_years_is_one(box: BubblewrapSandbox, seconds: float) -> None:
    assert (await box.run(["echo", "ok"], timeout_s=seconds)).stdout == b"ok\n"
    assert box.alive


async def test_a_request_that_process_1_cannot_take_fails_alone(box: BubblewrapSandbox) -> None:
    channel = box._live()
    for kind, body in (
        (wire.READ, wire.pack(b"/etc/hosts", b"9" * 40, b"1")),
        (wire.READ, b"\xff" * 4),
        (wire.RUN, wire.pack(b"x")),
        (wire.LIST, b"a\0b"),
    ):
        call = channel.start(0)
        channel.send(kind, call, body)
        with pytest.raises(SandboxFileError):
            await channel.answer(call, wire.ABORT)
    assert (await box.run(["echo", "ok"])).stdout == b"ok\n"
