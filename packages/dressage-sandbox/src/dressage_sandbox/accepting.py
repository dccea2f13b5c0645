"""Accepts connections on one socket until it is told to stop, each in a task of its own."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from functools import partial

__all__ = ["Accepting", "Room"]

_LEAST = 8

_PACE_S = 0.001
_BACK_OFF_S = 0.5
_log = logging.getLogger(__name__)


class Room:
    """How many connections may come of all sandboxes together, and the share of each.

    A connection takes two descriptors of this process: half of those that it may open are for something else.
    Each sandbox may have as many as half of what the others leave, so that of many that take all they can the
    last one has some still, and a few in any case.

    Args:
        most: connections; by default as the limit of open files says.
    """

    def __init__(self, most: int | None = None) -> None:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._left = most if most is not None else files // 4 if files > 0 else 1 << 20
        self._waiting: list[asyncio.Future[None]] = []

    def has_one(self, held: int) -> bool:
        """Whether who holds so many may have one more."""
        return held < max(_LEAST, (self._left + held) // 2)

    def take(self) -> None:
        """One more connection."""
        self._left -= 1

    def give_back(self) -> None:
        """It has ended: whoever waits looks again."""
        self._left += 1
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)

    async def changed(self) -> None:
        """Wait until one has ended."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn


class Accepting:
    """A server on a given socket. Kinds of it say in ``_serve`` what they do with a connection.

    What connects may be hostile, and its connections cost descriptors and time of this process, which serves
    others too: beyond ``max_connections`` they wait in the kernel, and no more than a thousand a second come.
    """

    def __init__(self, max_connections: int, limit: int = 1 << 16, room: Room | None = None) -> None:
        """``limit``: bytes that a connection's reader holds at most; ``room``: shared with others."""
        self._most = max_connections
        self._held = 0
        self._room = room or Room()
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
                while self._held >= self._most or not self._room.has_one(self._held):
                    await self._room.changed()
                try:
                    connection, _ = await loop.sock_accept(listener)
                except OSError as error:  # this process has no descriptor left, or the caller went away
                    _log.warning("a connection could not be accepted: %s", error)
                    await asyncio.sleep(_BACK_OFF_S)
                    continue
                self._held += 1
                self._room.take()
                task = asyncio.ensure_future(self._take(connection))
                self._tasks.add(task)
                task.add_done_callback(partial(self._taken, connection))
                await asyncio.sleep(_PACE_S)

    def _taken(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        connection.close()  # it may have been cancelled before it began
        self._tasks.discard(task)
        self._held -= 1
        self._room.give_back()

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
