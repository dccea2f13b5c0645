"""Accepts connections on one socket until it is told to stop, each in a task of its own."""

from __future__ import annotations

import asyncio
import logging
import socket

__all__ = ["Accepting"]

_log = logging.getLogger(__name__)


class Accepting:
    """A server on a given socket. Kinds of it say in ``_serve`` what they do with a connection."""

    def __init__(self, max_connections: int, limit: int = 1 << 16) -> None:
        """``limit``: bytes that a connection's reader holds at most."""
        self._room = asyncio.Semaphore(max_connections)
        self._limit = limit
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, listener: socket.socket) -> None:
        """Begin to accept."""
        listener.setblocking(False)
        self._server = await asyncio.start_server(self._accepted, sock=listener, limit=self._limit)

    def stop(self) -> None:
        """Accept no more and drop every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            async with self._room:
                await self._serve(reader, writer)
        except asyncio.CancelledError:
            _log.debug("connection dropped: the sandbox ended")
        except OSError as error:
            _log.debug("connection broke: %s", error)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError
