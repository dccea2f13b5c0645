from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

import pytest
from dressage_sandbox import BubblewrapProvider, BubblewrapSandbox, InvalidSpec, SandboxGone

ECHO = """
import socket, threading
server = socket.create_server(("127.0.0.1", 9000), backlog=128)
print("up", flush=True)
def serve(c):
    with c:
        while data := c.recv(65536): c.sendall(data)
while True: threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""


async def serve(box: BubblewrapSandbox) -> tuple[str, int]:
    """An echo server inside, and where the host reaches it."""
    up = asyncio.Event()
    await box.start(["python3", "-c", ECHO], on_output=lambda stream, data: up.set())
    async with asyncio.timeout(10):
        await up.wait()
    host, _, port = (await box.expose(9000)).url.removeprefix("http://").rpartition(":")
    return host, int(port)


async def echo(address: tuple[str, int], data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def test_many_connections_at_once_carry_bytes_both_ways(box: BubblewrapSandbox) -> None:
    address = await serve(box)
    texts = [os.urandom(20_000) for _ in range(30)]
    assert await asyncio.gather(*[echo(address, text) for text in texts]) == texts


async def test_callers_that_give_up_leave_no_sockets_behind(
    box: BubblewrapSandbox, until: Callable[..., Awaitable[None]]
) -> None:
    address = await serve(box)
    assert box._ports is not None
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for turns in range(60):
        connecting = asyncio.ensure_future(box._ports.connect(9000))
        for _ in range(turns % 6):
            await asyncio.sleep(0)
        connecting.cancel()
        results = await asyncio.gather(connecting, return_exceptions=True)
        for result in results:
            if isinstance(result, tuple):
                result[1].transport.abort()
    assert await echo(address, b"still here") == b"still here"
    await until(lambda: len(os.listdir("/proc/self/fd")) <= before + 3)  # noqa: PTH208


async def test_a_port_where_nobody_listens_closes_the_connection_and_later_works(
    box: BubblewrapSandbox,
) -> None:
    url = (await box.expose(9000)).url
    port = int(url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await reader.read() == b""
    writer.close()
    assert await serve(box) == ("127.0.0.1", port)
    assert await echo(("127.0.0.1", port), b"x") == b"x"


async def test_an_exposed_port_ends_with_its_sandbox(
    provider: BubblewrapProvider, box: BubblewrapSandbox
) -> None:
    address = await serve(box)
    reader, writer = await asyncio.open_connection(*address)
    await box.terminate()
    async with asyncio.timeout(20):
        assert await reader.read() == b""
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)
    with pytest.raises(SandboxGone):
        await box.expose(9001)


@pytest.mark.parametrize("port", [0, -1, 65536])
async def test_ports_that_do_not_exist_are_refused(box: BubblewrapSandbox, port: int) -> None:
    with pytest.raises(InvalidSpec, match="port="):
        await box.expose(port)
