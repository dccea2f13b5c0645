"""Connections from inside cost the host a bounded number of descriptors."""

from __future__ import annotations

import asyncio
import socket

from dressage_sandbox.accepting import Accepting


class Holding(Accepting):
    """Holds each connection until its other end closes."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
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
