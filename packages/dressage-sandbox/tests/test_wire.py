from __future__ import annotations

import asyncio
import socket

import pytest
from dressage_sandbox.channel import Channel
from dressage_sandbox.errors import SandboxFileError, SandboxGone
from dressage_sandbox.inside import wire
from hypothesis import given
from hypothesis import strategies as st

FRAMES = st.lists(
    st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(max_size=50)), max_size=8
)


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_fields_are_read_back(fields: list[bytes]) -> None:
    assert wire.unpack(wire.pack(*fields)) == fields


@given(FRAMES, st.lists(st.integers(1, 30), min_size=1, max_size=20))
def test_frames_are_read_back_however_the_stream_is_cut(
    frames: list[tuple[int, int, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(wire.frame(*frame) for frame in frames)
    buffer, got, at, turn = bytearray(), [], 0, 0
    while at < len(stream):
        step = cuts[turn % len(cuts)]
        buffer += stream[at : at + step]
        got += wire.split(buffer, 100)
        at, turn = at + step, turn + 1
    assert got == frames
    assert not buffer


@given(st.binary(max_size=200))
def test_bytes_of_a_hostile_inside_are_read_or_refused(data: bytes) -> None:
    for reader in (wire.unpack, lambda raw: wire.split(bytearray(raw), 64)):
        try:
            reader(data)
        except ValueError:
            continue


async def talk(*sent: bytes) -> SandboxGone | Exception | bytes:
    """What a call gets when the other side sends this."""
    ours, theirs = socket.socketpair()
    ended = asyncio.Event()
    channel = await Channel.open(ours, ended.set)
    call = channel.start(cap=100)
    for data in sent:
        theirs.sendall(data)
    try:
        async with asyncio.timeout(30):
            return await channel.answer(call, wire.ABORT)
    except (SandboxGone, SandboxFileError) as error:
        return error
    finally:
        channel.end(SandboxGone("test over"))
        theirs.close()
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (wire.HEADER.pack(2**31, wire.OUT, 1), "too long"),
        (wire.frame(wire.OUT, 1, bytes(60)) * 2, "more than 100 bytes"),
        (wire.frame(wire.FAIL, 1, b"\x05"), "cut off"),
        (wire.frame(wire.FAIL, 1, wire.pack(b"x", b"")), "without an errno"),
    ],
)
async def test_an_inside_that_breaks_the_protocol_ends_the_sandbox(sent: bytes, words: str) -> None:
    error = await talk(sent)
    assert isinstance(error, SandboxGone)
    assert words in str(error)


async def test_frames_for_unknown_calls_are_dropped() -> None:
    assert await talk(wire.frame(wire.OK, 99, b"no"), wire.frame(wire.OK, 1, b"yes")) == b"yes"


async def test_a_failure_is_the_errno_of_the_inside() -> None:
    error = await talk(wire.frame(wire.FAIL, 1, wire.pack(b"28", b"name\xff")))
    assert isinstance(error, SandboxFileError)
    assert error.errno == 28
