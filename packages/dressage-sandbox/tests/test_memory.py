"""What ran in a sandbox may use all of its memory up, and not pass that off as a failure of the machine."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from dressage_sandbox import BubblewrapProvider, InvalidSpec, Limits, OutOfMemory, SandboxSpec
from dressage_sandbox.arguments import file_sizes
from hypothesis import given
from hypothesis import strategies as st

MIB = 1 << 20
SMALL = SandboxSpec(limits=Limits(memory_bytes=96 * MIB, disk_bytes=64 * MIB, timeout_s=20.0))


async def limited(provider: BubblewrapProvider) -> None:
    if not (await provider.probe()).memory.startswith("cgroup"):
        pytest.skip("no control group holds memory here")


@given(st.integers(16 * MIB, 1 << 40), st.integers(1 * MIB, 1 << 42))
def test_full_file_systems_leave_a_quarter_of_the_memory(memory: int, disk: int) -> None:
    sizes = file_sizes(Limits(memory_bytes=memory, disk_bytes=disk))
    assert sum(sizes) <= memory * 3 // 4
    assert all(0 < size <= disk and size % 4096 == 0 for size in sizes)
    assert sizes[0] >= min(disk, memory // 2) - 4096


def test_by_default_and_where_memory_is_ample_each_has_its_whole_size() -> None:
    assert file_sizes(Limits())[:2] == (256 * MIB, 256 * MIB)
    assert file_sizes(Limits(memory_bytes=1 << 40, disk_bytes=MIB)) == (MIB, MIB, MIB)


async def test_after_all_file_systems_were_filled_commands_and_files_still_work(
    provider: BubblewrapProvider,
) -> None:
    box = await provider.create(SMALL)
    fill = "for f in /workspace/a /tmp/b /dev/shm/c; do head -c 200M /dev/zero >$f; done; echo filled"
    assert b"filled" in (await box.run(fill)).stdout
    for _ in range(5):
        assert (await box.run(["python3", "-c", "print(1)"])).stdout == b"1\n"
    assert len(await box.read("a", max_bytes=100)) == 100
    with pytest.raises(OSError, match="No space"):
        await box.write("more", bytes(4 * MIB))
    await box.run(["rm", "/tmp/b"])
    await box.write("/tmp/more", b"x")


HOARD = """
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
for _ in range(10_000):
    number = libc.shmget(0, 1 << 18, 0o1600)
    place = libc.shmat(number, 0, 0)
    ctypes.memset(place, 1, 1 << 18)
    libc.shmdt(ctypes.c_void_p(place))
"""


async def test_one_whose_memory_is_hoarded_until_it_dies_says_so_to_every_call(
    provider: BubblewrapProvider,
) -> None:
    await limited(provider)
    box = await provider.create(SMALL)

    async def use_up() -> None:
        for _ in range(200):
            await box.run(["python3", "-c", HOARD])
            await box.run(["head", "-c", "60M", "/dev/zero"], output_bytes=30 * MIB)  # process 1 holds these

    with pytest.raises(OutOfMemory, match="ran out of memory"):
        await use_up()
    with pytest.raises(OutOfMemory):
        await box.run(["true"])
    with pytest.raises(OutOfMemory):
        await box.read("x")
    assert "memory" in (await box.status()).why


async def test_one_that_dies_otherwise_is_not_said_to_have_run_out_of_memory(
    provider: BubblewrapProvider,
) -> None:
    box = await provider.create(SMALL)
    running = asyncio.ensure_future(box.run(["sleep", "20"]))
    await box.run(["true"])
    os.kill(box.pid, signal.SIGKILL)
    with pytest.raises(ConnectionError) as told:
        await running
    assert not isinstance(told.value, OutOfMemory)


async def test_standard_input_that_would_use_the_memory_up_is_refused(provider: BubblewrapProvider) -> None:
    box = await provider.create(SMALL)
    with pytest.raises(InvalidSpec, match="stdin"):
        await box.run(["cat"], stdin=bytes(25 * MIB))
    assert (await box.run(["wc", "-c"], stdin=bytes(20 * MIB))).stdout.strip() == b"20971520"


UNREAD = """
import socket
near, far, waiting = [], [], 0
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
for _ in range(40):
    near.append(socket.create_connection(listener.getsockname()))
    far.append(listener.accept()[0])
    for end in (near[-1], far[-1]):
        end.setblocking(False)
        try:
            while True:
                waiting += end.send(bytes(65536))
        except OSError:
            pass
print(waiting)
"""


async def test_bytes_that_wait_in_sockets_stay_within_the_memory(provider: BubblewrapProvider) -> None:
    await limited(provider)
    box = await provider.create(SandboxSpec(limits=Limits(memory_bytes=64 * MIB)))
    result = await box.run(["python3", "-c", UNREAD])
    if result.exit_code != 137:  # v2 counts them as any other memory
        assert 0 < int(result.stdout) < 64 * MIB, result
    assert (await box.run(["echo", "ok"])).stdout == b"ok\n"
