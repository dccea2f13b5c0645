"""Connections from inside cost the host a bounded number of descriptors."""

from __future__ import annotations

import asyncio
import socket

import pytest
from dressage_sandbox.accepting import Accepting, Room
from hypothesis import given
from hypothesis import strategies as st


class Holding(Accepting):
    """Holds each connection until its other end closes."""

    def __init__(self, most: int, room: Room | None = None) -> None:
        super().__init__(most, room=room)
        self.held = self.served = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.held, self.served = self.held + 1, self.served + 1
        try:
            await reader.read()
        finally:
            self.held -= 1


async def settled(server: Holding, held: int, served: int) -> None:
    async with asyncio.timeout(20):
        while (server.held, server.served) != (held, served):
            await asyncio.sleep(0.005)


async def test_connections_beyond_the_most_wait_in_the_kernel_and_have_their_turn() -> None:
    server = Holding(3)
    listener = socket.create_server(("127.0.0.1", 0), backlog=32)
    address = listener.getsockname()
    await server.start(listener)
    callers = [socket.create_connection(address) for _ in range(10)]
    await settled(server, 3, 3)
    await asyncio.sleep(0.1)
    assert (server.held, server.served) == (3, 3)
    for caller in callers[:7]:
        caller.close()
    await settled(server, 3, 10)
    server.stop()
    await settled(server, 0, 10)
    for caller in callers[7:]:
        assert caller.recv(1) == b""
        caller.close()
    assert listener.fileno() == -1


async def test_a_flood_of_short_connections_leaves_the_loop_its_time() -> None:
    server = Holding(8)
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    address = listener.getsockname()
    for _ in range(200):
        socket.create_connection(address).close()
    await server.start(listener)
    begun = asyncio.get_running_loop().time()
    await settled(server, 0, 200)
    assert asyncio.get_running_loop().time() - begun >= 0.15
    server.stop()
    await asyncio.sleep(0.01)


async def test_a_server_that_is_stopped_at_once_leaves_no_socket() -> None:
    server = Holding(8)
    listener = socket.create_server(("127.0.0.1", 0))
    with socket.create_connection(listener.getsockname()):
        await server.start(listener)
        server.stop()
        await asyncio.sleep(0.01)
    assert listener.fileno() == -1
    assert server.held == 0


async def test_of_many_that_take_all_they_can_each_has_some_and_none_takes_all() -> None:
    room = Room(most=64)
    servers, callers = [], []
    for _ in range(6):
        server = Holding(256, room)
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        await server.start(listener)
        callers.append([socket.create_connection(listener.getsockname()) for _ in range(60)])
        servers.append(server)
        share = max(8, (64 - sum(each.held for each in servers)) // 2)
        await settled(server, share, share)
    assert [server.held for server in servers] == [32, 16, 8, 8, 8, 8]
    for caller in callers[0]:  # what the first gives back is there for the others
        caller.close()
    async with asyncio.timeout(20):
        while sum(server.held for server in servers[1:]) < 48 + 4:
            await asyncio.sleep(0.005)
    for server, opened in zip(servers, callers, strict=True):
        server.stop()
        await settled(server, 0, server.served)
        for caller in opened:
            caller.close()


@given(st.lists(st.integers(0, 5), max_size=200))
def test_a_place_is_had_again_however_often_it_was_taken(takers: list[int]) -> None:
    room, held = Room(most=16), [0] * 6
    for taker in takers:
        if room.has_one(held[taker]):
            room.take()
            held[taker] += 1
    assert sum(held) <= 16 + 6 * 8
    for number in held:
        for _ in range(number):
            room.give_back()
    assert room.has_one(7)
    assert not room.has_one(16)


async def test_connections_take_no_more_than_half_of_what_this_process_may_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (1024, 4096))
    room = Room()
    assert room.has_one(127)
    assert not room.has_one(257)
    for files in (-1, 1 << 20):
        monkeypatch.setattr("resource.getrlimit", lambda which, files=files: (files, files))
        assert Room().has_one(10_000)
