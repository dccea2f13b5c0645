"""Accepts connections on one socket until it is told to stop, each in a task of its own."""

from __future__ import annotations

import asyncio
import logging
import socket
from functools import partial

__all__ = ["Accepting"]

_PACE_S = 0.001
_BACK_OFF_S = 0.5
_log = logging.getLogger(__name__)


class Accepting:
    """A server on a given socket. Kinds of it say in ``_serve`` what they do with a connection.

    What connects may be hostile, and its connections cost descriptors and time of this process, which serves
    others too: beyond ``max_connections`` they wait in the kernel, and no more than a thousand a second come.
    """

    def __init__(self, max_connections: int, limit: int = 1 << 16) -> None:
        """``limit``: bytes that a connection's reader holds at most."""
        self._room = asyncio.Semaphore(max_connections)
        self._limit = limit
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None

    async def start(self, listener: socket.socket) -> None:
        """Begin to accept; the socket is closed at the end."""
        listener.setblocking(False)
        self._accepting = asyncio.ensure_future(self._accept(listener))
        await asyncio.sleep(0)  # a task that never began would not close it

    def stop(self) -> None:
        """Accept no more and drop every connection."""
        if self._accepting is not None:
            self._accepting.cancel()
        for task in self._tasks:
            task.cancel()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                await self._room.acquire()
                try:
                    connection, _ = await loop.sock_accept(listener)
                except OSError as error:  # this process has no descriptor left, or the caller went away
                    self._room.release()
                    _log.warning("a connection could not be accepted: %s", error)
                    await asyncio.sleep(_BACK_OFF_S)
                    continue
                task = asyncio.ensure_future(self._take(connection))
                self._tasks.add(task)
                task.add_done_callback(partial(self._taken, connection))
                await asyncio.sleep(_PACE_S)

    def _taken(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        connection.close()  # it may have been cancelled before it began
        self._tasks.discard(task)
        self._room.release()

    async def _take(self, connection: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=connection, limit=self._limit)
            try:
                await self._serve(reader, writer)
            finally:
                writer.transport.abort()
        except asyncio.CancelledError:
            _log.debug("connection dropped: the sandbox ended")
        except OSError as error:
            _log.debug("connection broke: %s", error)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError
