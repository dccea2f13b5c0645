"""Handing a new connection to the shard of its first request, so that its bytes pass no other process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
from collections.abc import Awaitable, Callable

_PEEK_BYTES = 1024
_REQUEST = re.compile(rb"[A-Z]+ (/[^ ?]*)[ ?]")
_PATIENCE_S = 30.0
"""How long a new connection may take to say what it wants."""
_POLL_S = 0.005
_COMPLAIN_S = 5.0
"""While connections cannot be accepted, the log says so this often."""
log = logging.getLogger("dressage.proxy")

Handler = Callable[[socket.socket, str], Awaitable[None]]
"""Takes over a connection, given the path of its first request."""


class Dispatcher:
    """Accepts on one listening socket and gives each connection away. Used from one event loop."""

    def __init__(self, listener: socket.socket, handler: Handler) -> None:
        self._listener = listener
        self._handler = handler
        self._tasks: set[asyncio.Task[None]] = set()
        self._silent_until = 0.0

    async def serve(self) -> None:
        """Accept until cancelled."""
        self._listener.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    connection, _ = await loop.sock_accept(self._listener)
                except OSError as error:  # such as too many open files: what is open goes on
                    if loop.time() >= self._silent_until:
                        self._silent_until = loop.time() + _COMPLAIN_S
                        log.warning("cannot accept a connection: %s", error)
                    await asyncio.sleep(_POLL_S)
                    continue
                task = asyncio.create_task(self._give(connection))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        finally:
            for task in self._tasks:
                task.cancel()

    async def _give(self, connection: socket.socket) -> None:
        given = False
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(_PATIENCE_S):
                path = await _first_path(connection)
            if path is not None:
                await self._handler(connection, path)
                given = True
        except (OSError, TimeoutError):
            pass  # it is gone, or says nothing: nobody is there to be told
        finally:
            if not given:
                connection.close()


async def _first_path(connection: socket.socket) -> str | None:
    """The path of the first request, read without taking it; None where the client closed before."""
    seen = 0
    while True:
        await _readable(connection)
        with contextlib.suppress(BlockingIOError):
            data = connection.recv(_PEEK_BYTES, socket.MSG_PEEK)
            match = _REQUEST.match(data)
            if match is not None:
                return match.group(1).decode("latin-1")
            if not data:
                return None
            if len(data) == _PEEK_BYTES or b"\n" in data:
                return ""  # no request line of HTTP: the server behind says so
            if len(data) == seen:
                await asyncio.sleep(_POLL_S)  # readable stays set while the line is not whole
            seen = len(data)


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(connection.fileno(), _set, ready)
    try:
        await ready
    finally:
        loop.remove_reader(connection.fileno())


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
