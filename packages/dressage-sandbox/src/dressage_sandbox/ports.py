"""Ports of the inside that the host can reach, by sockets of the sandbox's own network namespace.

Nothing inside takes part: the agent makes an unconnected socket and passes it out, and the host connects it
to the inside's loopback himself.
"""

from __future__ import annotations

import asyncio
import os
import socket

from .channel import Channel
from .errors import InvalidSpec, SandboxGone
from .inside import wire
from .protocol import Endpoint
from .relay import Relay

__all__ = ["Ports"]

_CONNECT_S = 10.0


class Ports:
    """The exposed ports of one sandbox."""

    def __init__(self, channel: Channel, door: socket.socket) -> None:
        self._channel = channel
        self._door = door
        self._relays: dict[int, tuple[Relay, Endpoint]] = {}

    async def expose(self, port: int) -> Endpoint:
        """See ``protocol.Sandbox.expose``."""
        if not 0 < port < 65536:
            raise InvalidSpec(f"port={port}: from 1 to 65535")
        if port not in self._relays:
            listener = socket.create_server(("127.0.0.1", 0), backlog=128)
            endpoint = Endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}")
            relay = Relay(lambda: self.connect(port), f"port {port} of the inside")
            self._relays[port] = (relay, endpoint)
            await relay.start(listener)
        return self._relays[port][1]

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to 127.0.0.1:``port`` of the inside.

        Raises:
            OSError: nobody listens there.
            SandboxGone: the sandbox has ended.
        """
        connection = self._passed()
        while connection is None:
            call = self._channel.start(0)
            self._channel.send(wire.SOCKET, call)
            await self._channel.answer(call, wire.ABORT)
            connection = self._passed()
        try:
            connection.setblocking(False)
            async with asyncio.timeout(_CONNECT_S):
                await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
            return await asyncio.open_connection(sock=connection)
        except BaseException:
            connection.close()
            raise

    def _passed(self) -> socket.socket | None:
        """A socket that the agent has passed out. All are alike: one whose caller left serves the next."""
        try:
            data, fds, _, _ = socket.recv_fds(self._door, wire.SIZE.size, 1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        if len(fds) != 1 or len(data) != wire.SIZE.size:
            for fd in fds:
                os.close(fd)
            raise SandboxGone("the sandbox gave no socket")
        return socket.socket(fileno=fds[0])

    def stop(self) -> None:
        """Accept no more and drop every connection."""
        for relay, _ in self._relays.values():
            relay.stop()
        self._door.close()
