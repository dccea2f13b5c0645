from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator

import pytest
from dressage_sandbox import BubblewrapProvider, InvalidSpec, SandboxSpec
from dressage_sandbox.relay import parse_address


def address_of(server: asyncio.Server) -> str:
    return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


class Upstream:
    """Answers each connection after the inside has ended its direction: what came, in upper case."""

    def __init__(self) -> None:
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        data = await reader.read()
        writer.write(data.upper())
        await writer.drain()
        writer.close()


@pytest.fixture
async def upstream() -> AsyncIterator[tuple[Upstream, str]]:
    """An upstream and its address."""
    behaviour = Upstream()
    server = await asyncio.start_server(behaviour.serve, "127.0.0.1", 0)
    yield behaviour, address_of(server)
    server.close()


CLIENT = """
import socket, sys, threading
from urllib.parse import urlsplit
address = (urlsplit(sys.argv[1]).hostname, urlsplit(sys.argv[1]).port)
def talk(text):
    with socket.create_connection(address, 5) as s:
        s.sendall(text)
        s.shutdown(socket.SHUT_WR)
        got = b"".join(iter(lambda: s.recv(65536), b""))
        assert got == text.upper(), (len(got), len(text))
count, size = int(sys.argv[2]), int(sys.argv[3])
threads = [threading.Thread(target=talk, args=(b"%d " % i + b"x" * size,)) for i in range(count)]
[t.start() for t in threads]; [t.join() for t in threads]
print("done")
"""


@pytest.mark.parametrize(("count", "size"), [(1, 0), (1, 3_000_000), (60, 1000)])
async def test_the_relay_carries_bytes_both_ways_with_half_close(
    provider: BubblewrapProvider, upstream: tuple[Upstream, str], count: int, size: int
) -> None:
    behaviour, address = upstream
    box = await provider.create(SandboxSpec(relay=address))
    assert box.relay_url is not None
    result = await box.run(["python3", "-c", CLIENT, box.relay_url, str(count), str(size)])
    assert (result.stdout, result.stderr) == (b"done\n", b"")
    assert behaviour.connections == count


async def test_two_sandboxes_have_the_same_url_and_reach_their_own_address(
    provider: BubblewrapProvider,
) -> None:
    urls, answers = [], []
    for name in (b"one", b"two"):

        async def serve(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: bytes = name
        ) -> None:
            writer.write(name)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        box = await provider.create(SandboxSpec(relay=address_of(server)))
        urls.append(box.relay_url)
        read = "import socket; print(socket.create_connection(('127.0.0.1', 8800)).recv(99).decode())"
        answers.append((await box.run(["python3", "-c", read])).stdout)
        server.close()
    assert answers == [b"one\n", b"two\n"]
    assert urls[0] == urls[1] == "http://127.0.0.1:8800"


async def test_an_upstream_that_is_down_ends_the_connection_and_not_the_relay(
    provider: BubblewrapProvider, upstream: tuple[Upstream, str], unused_port: int
) -> None:
    box = await provider.create(SandboxSpec(relay=f"127.0.0.1:{unused_port}"))
    read = (
        "import socket\ntry: print(socket.create_connection(('127.0.0.1', 8800), 3).recv(9))\n"
        "except OSError: print(b'')"
    )
    for _ in range(2):
        assert (await box.run(["python3", "-c", read])).stdout == b"b''\n"


@pytest.fixture
def unused_port() -> Iterator[int]:
    """Held, so that nobody else gets it; nothing listens, so that connections are refused."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


async def test_terminate_drops_open_connections(provider: BubblewrapProvider) -> None:
    connected, ended = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read()
        ended.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    box = await provider.create(SandboxSpec(relay=address_of(server)))
    hold = "import socket, time; s = socket.create_connection(('127.0.0.1', 8800)); time.sleep(60)"
    holding = asyncio.ensure_future(box.run(["python3", "-c", hold]))
    async with asyncio.timeout(30):
        await connected.wait()
    await box.terminate()
    async with asyncio.timeout(15):
        await ended.wait()
    with pytest.raises(ConnectionError):
        await holding
    server.close()


async def test_a_round_trip_through_the_relay_is_short(provider: BubblewrapProvider) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1024):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    box = await provider.create(SandboxSpec(relay=address_of(server)))
    measure = (
        "import socket, time; s = socket.create_connection(('127.0.0.1', 8800)); times = []\n"
        "s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)\n"
        "for _ in range(200):\n"
        "    t = time.perf_counter(); s.sendall(b'x'); s.recv(1); times.append(time.perf_counter() - t)\n"
        "print(sorted(times)[20])"
    )
    short = float((await box.run(["python3", "-c", measure])).stdout)
    server.close()
    # 0.2 ms on a quiet machine. A stall in the relay is in each trip; a busy machine leaves some alone.
    assert short < 0.01


async def test_without_a_relay_nothing_listens_inside(provider: BubblewrapProvider) -> None:
    box = await provider.create(SandboxSpec())
    assert box.relay_url is None
    connect = "import socket; socket.create_connection(('127.0.0.1', 8800), 30)"
    result = await box.run(["python3", "-c", connect])
    assert b"ConnectionRefusedError" in result.stderr  # at once, and no time-out


@pytest.mark.parametrize(
    "text", ["", "localhost", ":80", "host:", "host:x", "host:0", "host:65536", "http://h:80", "h:8 0"]
)
def test_an_address_of_another_form_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidSpec, match="relay="):
        parse_address(text)


def test_addresses_are_read() -> None:
    assert parse_address("127.0.0.1:80") == ("127.0.0.1", 80)
    assert parse_address("[::1]:65535") == ("::1", 65535)
    assert parse_address("engine.local:8000") == ("engine.local", 8000)
