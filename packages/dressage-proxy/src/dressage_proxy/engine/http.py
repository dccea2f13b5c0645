"""POST over kept connections, as little as possible per request: httptools reads, one write sends.

What calls to an engine need of HTTP/1.1 and no more: a client for every need takes three times as long.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast
from urllib.parse import unquote, urlsplit

import httptools

from dressage_proxy.records import record

_IDLE_S = 60.0
_TEMPORARY = range(100, 200)
_ALIVE = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 20),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 10),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 50_000),
)
"""A machine that is gone says nothing: a call that waits for an engine there ends in less than a minute, and
not only once a whole reply took too long. By name, since not every system has them all."""


class ConnectError(ConnectionError):
    """No connection was made: nothing was sent."""


@record
class HttpReply:
    """Status, headers (lower case) and whole body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a base URL leads to."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    prefix: str
    headers: str
    """Those that every request has."""


class Exchange:
    """A request on its way, and its reply. Who is cancelled while waiting for it may wait again: the request
    goes on, until it is dropped. Used from one event loop, by one who waits at a time."""

    def __init__(self, over: Callable[[], None], drop: Callable[[], None]) -> None:
        """``over`` is called once it has ended, ``drop`` closes its connection."""
        self._over = over
        self._drop = drop
        self._outcome: HttpReply | Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def ended(self) -> bool:
        """Whether the reply is there, or will never be."""
        return self._outcome is not None

    async def wait(self) -> None:
        """Until it has ended."""
        if self._outcome is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    async def reply(self) -> HttpReply:
        """The whole reply. Raises ConnectionError for what is none, and TimeoutError."""
        await self.wait()
        if isinstance(self._outcome, Exception):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome

    def drop(self) -> None:
        """Give it up and close its connection."""
        if not self.ended:
            self._drop()

    def close(self) -> None:
        """Close its connection even if it has ended: what came over it was not the reply."""
        self._drop()

    def end(self, outcome: HttpReply | Exception) -> None:
        """Its connection's word of how it ended."""
        self._outcome = outcome
        self._over()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class HttpPool:
    """Connections by base URL. Used from one event loop."""

    def __init__(self, *, timeout_s: float, connect_s: float) -> None:
        """``timeout_s`` is for a whole request, ``connect_s`` for making a connection."""
        self._timeout_s = timeout_s
        self._connect_s = connect_s
        self._origins: dict[str, _Origin] = {}
        self._idle: dict[str, list[_Connection]] = {}
        # Weakly: of a connection that is given up while it is made, uvloop does not say that it was lost.
        self._open: weakref.WeakSet[_Connection] = weakref.WeakSet()

    async def begin(self, base: str, path: str, body: Sequence[bytes]) -> Exchange:
        """Send JSON (its bytes in pieces) once. Raises ConnectError."""
        origin = self._origins.get(base)
        if origin is None:
            origin = self._origins[base] = _origin(base)
        head = (
            f"POST {origin.prefix}{path} HTTP/1.1\r\n{origin.headers}"
            f"Content-Length: {sum(map(len, body))}\r\n\r\n"
        )
        connection = self._kept(base) or await self._connect(base, origin)
        timer = asyncio.get_running_loop().call_later(self._timeout_s, connection.give_up)

        def over() -> None:
            timer.cancel()
            self._back(base, connection)

        exchange = Exchange(over, connection.close)
        connection.send(exchange, [head.encode("ascii"), *body])
        return exchange

    def close(self) -> None:
        """Close every connection."""
        self._idle.clear()
        for connection in list(self._open):
            connection.close()

    def forget(self, base: str) -> None:
        """Close the connections there that nobody uses, and keep nothing of them; those under way end with
        their requests, unless some are made there again."""
        self._origins.pop(base, None)
        for connection in self._idle.pop(base, ()):
            connection.close()

    def _kept(self, base: str) -> _Connection | None:
        """The connection that was used last, if it is still good."""
        idle = self._idle.get(base, [])
        oldest = asyncio.get_running_loop().time() - _IDLE_S
        while idle and (idle[0].closed or idle[0].since < oldest):
            idle.pop(0).close()
        while idle:
            connection = idle.pop()
            if not connection.closed:
                return connection
        return None

    def _back(self, base: str, connection: _Connection) -> None:
        if connection.reusable and base in self._origins:
            connection.since = asyncio.get_running_loop().time()
            self._idle.setdefault(base, []).append(connection)
        else:
            connection.close()

    async def _connect(self, base: str, origin: _Origin) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self._open), origin.host, origin.port, ssl=origin.tls
                )
        except TimeoutError as error:
            raise ConnectError(f"no connection to {base} within {self._connect_s} s") from error
        except OSError as error:
            raise ConnectError(f"no connection to {base}: {error}") from error
        return connection


class _Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, open_ones: weakref.WeakSet[_Connection]) -> None:
        self.closed = False
        self.reusable = False
        self.since = 0.0
        self._open = open_ones
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._begun = False

    def send(self, exchange: Exchange, request: Sequence[bytes]) -> None:
        """Send a request; the exchange is told what became of it."""
        self.reusable = False
        self._exchange = exchange
        if self._transport is None or self.closed:
            self._fail(ConnectionResetError("the engine closed the connection"))
        else:
            self._transport.writelines(request)

    def give_up(self) -> None:
        """The time is over."""
        self._fail(TimeoutError("no whole reply in time"))

    def close(self) -> None:
        """Close at once, whatever is under way."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._open.add(self)
        sock = transport.get_extra_info("socket")
        for level, name, value in _ALIVE:
            if (option := getattr(socket, name, None)) is not None:
                sock.setsockopt(level, option, value)

    def data_received(self, data: bytes) -> None:
        """asyncio.Protocol."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(ConnectionError(f"the engine's reply is no HTTP/1.1: {error!r}"))

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio.Protocol."""
        self.closed = True
        self._open.discard(self)
        if (
            self._begun
            and error is None
            and not {"content-length", "transfer-encoding"} & self._headers.keys()
        ):
            self._done()  # its end is the end of the connection
        self._fail(
            error or ConnectionResetError("the engine closed the connection before its reply was whole")
        )

    def on_message_begin(self) -> None:
        """httptools."""
        self._headers, self._body, self._begun = {}, [], False
        if self._exchange is None:
            self.close()  # nobody has asked: its end must not be taken for the next answer

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """httptools."""
        self._begun = True

    def on_body(self, data: bytes) -> None:
        """httptools."""
        self._body.append(data)

    def on_message_complete(self) -> None:
        """httptools."""
        if self._parser.get_status_code() not in _TEMPORARY:
            self.reusable = self._parser.should_keep_alive() and self._sent()
            self._done()

    def _sent(self) -> bool:
        """Whether the request is out: an engine may answer, and refuse, before it was read."""
        return self._transport is not None and not self._transport.get_write_buffer_size()

    def _done(self) -> None:
        self._begun = False
        self._end(HttpReply(self._parser.get_status_code(), self._headers, b"".join(self._body)))
        self._body = []

    def _fail(self, error: Exception) -> None:
        self.reusable = False
        self._end(error)

    def _end(self, outcome: HttpReply | Exception) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            self.close()  # nobody had asked
        else:
            exchange.end(outcome)


def _origin(base: str) -> _Origin:
    parts = urlsplit(base)
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    user, _, authority = parts.netloc.rpartition("@")
    headers = f"Host: {authority}\r\nAccept: */*\r\nContent-Type: application/json\r\n"
    if user:
        headers += f"Authorization: Basic {base64.b64encode(unquote(user).encode()).decode()}\r\n"
    port = parts.port or (443 if tls else 80)
    return _Origin(parts.hostname or "", port, tls, parts.path.rstrip("/"), headers)
