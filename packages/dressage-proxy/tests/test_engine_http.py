"""POST over kept connections, against a server that says byte for byte what a test wants."""

from __future__ import annotations

import asyncio
import base64
import gc
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import uvloop
from dressage_proxy.engine.http import ConnectError, HttpPool, HttpReply

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
Answer = Callable[[asyncio.StreamWriter, int], Awaitable[None]]


class Server:
    """Reads requests, answers each as told, and counts connections."""

    def __init__(self) -> None:
        self.requests: list[tuple[bytes, bytes]] = []
        self.connections = 0
        self.lost = asyncio.Event()
        self._handlers: set[asyncio.Task[None] | None] = set()
        self._writers: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def serving(self, answer: Answer, host: str = "127.0.0.1") -> AsyncIterator[str]:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            self._handlers.add(asyncio.current_task())
            self._writers.append(writer)
            try:
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = LENGTH.search(head)
                    assert length is not None
                    body = await reader.readexactly(int(length.group(1)))
                    self.requests.append((head, body))
                    await answer(writer, len(self.requests))
            except (asyncio.IncompleteReadError, ConnectionError):
                self.lost.set()
            finally:
                writer.close()
                await asyncio.gather(writer.wait_closed(), return_exceptions=True)

        server = await asyncio.start_server(handle, host, 0)
        port = server.sockets[0].getsockname()[1]
        try:
            yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        finally:
            server.close()
            for writer in self._writers:
                writer.transport.abort()
            await asyncio.gather(*(task for task in self._handlers if task is not None))


def saying(*parts: bytes, close: bool = False) -> Answer:
    async def answer(writer: asyncio.StreamWriter, number: int) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        if close:
            writer.close()

    return answer


async def post(pool: HttpPool, url: str, body: Sequence[bytes]) -> HttpReply:
    return await (await pool.begin(url, "/generate", body)).reply()


@asynccontextmanager
async def pooled(timeout_s: float = 5.0, connect_s: float = 5.0) -> AsyncIterator[HttpPool]:
    pool = HttpPool(timeout_s=timeout_s, connect_s=connect_s)
    try:
        yield pool
    finally:
        pool.close()


async def asked(answer: Answer, times: int = 1, **options: float) -> tuple[HttpReply, Server]:
    server = Server()
    async with server.serving(answer) as url, pooled(**options) as pool:
        for _ in range(times):
            reply = await post(pool, url, [b"{}"])
    return reply, server


async def test_a_request_is_whole_and_its_connection_is_kept() -> None:
    server = Server()
    async with server.serving(saying(OK)) as url, pooled() as pool:
        for _ in range(3):
            reply = await post(pool, f"{url}/base", [b'{"a":', b"1}"])
            assert (reply.status, reply.body) == (200, b"hi")
    assert server.connections == 1
    head, body = server.requests[-1]
    assert body == b'{"a":1}'
    assert head.startswith(b"POST /base/generate HTTP/1.1\r\n")
    assert b"\r\nContent-Type: application/json\r\n" in head
    assert f"Host: {url.removeprefix('http://')}".encode() in head


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="of Linux alone")
def test_a_machine_that_is_gone_is_found_out() -> None:
    async def options() -> list[int]:
        server = Server()

        async def answer(writer: asyncio.StreamWriter, number: int) -> None:
            writer.write(OK)

        async with server.serving(answer) as url:
            pool = HttpPool(timeout_s=5, connect_s=5)
            exchange = await pool.begin(url, "/x", [b"{}"])
            (connection,) = pool._open
            sock = connection._transport.get_extra_info("socket")
            found = [
                sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
            ]
            await exchange.reply()
            pool.close()
            return found

    for factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            alive, timeout_ms = runner.run(options())
        assert alive
        assert 0 < timeout_ms <= 60_000


async def test_requests_at_once_have_connections_of_their_own() -> None:
    gate = asyncio.Event()

    async def answer(writer: asyncio.StreamWriter, number: int) -> None:
        await gate.wait()
        writer.write(OK)

    server = Server()
    async with server.serving(answer) as url, pooled() as pool:
        tasks = [asyncio.create_task(post(pool, url, [b"{}"])) for _ in range(5)]
        while len(server.requests) < 5:
            await asyncio.sleep(0.001)
        gate.set()
        assert [reply.body for reply in await asyncio.gather(*tasks)] == [b"hi"] * 5
        await post(pool, url, [b"{}"])
    assert server.connections == 5


@pytest.mark.parametrize(
    "reply",
    [
        OK,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: T\r\n\r\n2\r\nhi\r\n0\r\nT: 1\r\n\r\n",
        OK.replace(b"\r\n", b"\r\nUpgrade: h2c\r\nConnection: Upgrade, Keep-Alive\r\n", 1),
    ],
)
async def test_a_reply_may_come_in_any_pieces(reply: bytes) -> None:
    for answer in (saying(reply), saying(*(reply[at : at + 1] for at in range(len(reply))))):
        told, server = await asked(answer, times=2)
        assert (told.status, told.body, server.connections) == (200, b"hi", 1)


async def test_a_reply_without_length_ends_with_its_connection() -> None:
    told, server = await asked(saying(b"HTTP/1.1 200 OK\r\n\r\nh", b"i", close=True), times=2)
    assert (told.body, server.connections) == (b"hi", 2)


async def test_a_connection_that_the_server_gives_up_is_not_used_again() -> None:
    closing = OK.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
    for answer in (saying(closing, close=True), saying(closing)):
        _, server = await asked(answer, times=3)
        assert server.connections == 3


async def test_status_and_headers_are_told() -> None:
    busy = b"HTTP/1.1 429 Too Many Requests\r\nRETRY-After: 7\r\nContent-Length: 4\r\n\r\nbusy"
    told, server = await asked(saying(busy), times=2)
    assert (told.status, told.headers["retry-after"], told.body) == (429, "7", b"busy")
    assert server.connections == 1


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nConte",
        OK[:-1],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhi",
        b"SSH-2.0-OpenSSH_9\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ],
)
async def test_what_is_no_whole_reply_is_an_error(reply: bytes) -> None:
    with pytest.raises(ConnectionError):
        await asked(saying(reply, close=True))


async def test_a_reset_connection_is_an_error_and_the_next_request_has_another() -> None:
    async def answer(writer: asyncio.StreamWriter, number: int) -> None:
        if number == 2:
            writer.transport.abort()
        else:
            writer.write(OK)

    server = Server()
    async with server.serving(answer) as url, pooled() as pool:
        await post(pool, url, [b"{}"])
        with pytest.raises(ConnectionError):
            await post(pool, url, [b"{}"])
        assert (await post(pool, url, [b"{}"])).body == b"hi"
    assert server.connections == 2


STRAY = OK.replace(b"hi", b"no")


@pytest.mark.parametrize("size", [1, 20, len(STRAY) - 1, len(STRAY)])
async def test_a_reply_that_nobody_asked_for_answers_nothing(size: int) -> None:
    """The second reply, or its beginning, comes with the first: it must not be taken for that of the next
    request."""
    spoilt: list[asyncio.StreamWriter] = []

    async def answer(writer: asyncio.StreamWriter, number: int) -> None:
        if number == 1:
            spoilt.append(writer)
            writer.write(OK + STRAY[:size])
        else:
            writer.write(STRAY[size:] + OK if writer in spoilt else OK)

    told, server = await asked(answer, times=2)
    assert (told.body, server.connections) == (b"hi", 2)


def test_nothing_is_left_of_a_connection_that_is_given_up_while_it_is_made() -> None:
    async def given_up() -> None:
        async with Server().serving(saying()) as url, pooled() as pool:
            for steps in range(6):
                task = asyncio.create_task(pool.begin(url, "/generate", [b"{}"]))
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                if not task.cancelled():
                    task.result().drop()
                del task
            while pool._open:
                await asyncio.sleep(0.01)
                gc.collect()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(given_up())


async def test_nobody_there_is_told_apart() -> None:
    async with pooled() as pool:
        with pytest.raises(ConnectError, match="no connection to http"):
            await post(pool, "http://127.0.0.1:1", [b"{}"])
        with pytest.raises(ConnectError, match="no connection"):
            await post(pool, "http://host.invalid", [b"{}"])


async def test_a_reply_that_takes_too_long_is_given_up_with_its_connection() -> None:
    async def answer(writer: asyncio.StreamWriter, number: int) -> None:
        if number > 1:
            writer.write(OK)

    server = Server()
    async with server.serving(answer) as url, pooled(timeout_s=0.05) as pool:
        with pytest.raises(TimeoutError):
            await post(pool, url, [b"{}"])
        await server.lost.wait()
        pool._timeout_s = 30.0  # the next one has all the time it needs
        assert (await post(pool, url, [b"{}"])).body == b"hi"


async def test_a_request_outlives_who_waits_for_it_and_ends_when_it_is_dropped() -> None:
    async def answer(writer: asyncio.StreamWriter, number: int) -> None:
        return None

    server = Server()
    async with server.serving(answer) as url, pooled() as pool:
        exchange = await pool.begin(url, "/generate", [b"{}"])
        task = asyncio.create_task(exchange.reply())
        while not server.requests:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(server.lost.wait(), 0.05)
        assert not exchange.ended
        exchange.drop()
        with pytest.raises(ConnectionError):
            await exchange.reply()
        await server.lost.wait()


async def test_a_refusal_before_the_request_is_read_is_told() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await done.wait()
        writer.transport.abort()

    done = asyncio.Event()
    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, pooled() as pool:
        assert (await post(pool, url, [b"x" * 64_000_000])).status == 413
        assert not any(pool._idle.values())
        done.set()
        await asyncio.sleep(0.01)


async def test_other_addresses_are_understood() -> None:
    server = Server()
    async with server.serving(saying(OK), "::1") as url, pooled() as pool:
        assert (await post(pool, url, [b"{}"])).body == b"hi"
        named = url.replace("http://", "http://me:a%20secret@")
        await post(pool, named, [b"{}"])
    said = base64.b64encode(b"me:a secret")
    assert b"\r\nAuthorization: Basic " + said + b"\r\n" in server.requests[1][0]
    assert b"Host: [::1]:" in server.requests[1][0]
