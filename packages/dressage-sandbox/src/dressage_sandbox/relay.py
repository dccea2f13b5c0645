"""The one way out of a sandbox: its loopback port, forwarded by the host to exactly one address.

The agent makes the listening socket inside and passes it out; a socket stays in the network namespace
where it was made, so the host accepts the inside's connections on it directly. Nothing inside takes part in
forwarding, and nothing is mounted for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from .accepting import Accepting, Room
from .errors import InvalidSpec, SandboxError

__all__ = ["Dial", "Relay", "parse_address", "pump", "splice"]

_PIECE = 1 << 16
Dial = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
_log = logging.getLogger("dressage_sandbox.relay")


def parse_address(text: str, field: str = "relay") -> tuple[str, int]:
    """``host:port`` (or ``[v6]:port``) -> (host, port).

    Raises:
        InvalidSpec: it is not of that form; names ``field``.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536 or "/" in host:
        raise InvalidSpec(f'{field}={text!r}: write it as "host:port", for example "127.0.0.1:8000"')
    return host, int(port)


class Relay(Accepting):
    """Accepts on a socket and forwards each connection to what ``dial`` connects to: one address.

    The socket is one of a sandbox's network namespace (the model relay), or one of the host (a port of the
    inside that is exposed).
    """

    def __init__(self, dial: Dial, name: str, max_connections: int = 256, room: Room | None = None) -> None:
        super().__init__(max_connections, room=room)
        self._dial = dial
        self._name = name

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            out_reader, out_writer = await self._dial()
        except (OSError, SandboxError) as error:
            _log.warning("relay to %s refused: %s", self._name, error)
            return
        await splice(reader, writer, out_reader, out_writer)


async def splice(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    out_reader: asyncio.StreamReader,
    out_writer: asyncio.StreamWriter,
) -> None:
    """Copy both ways until both have ended; closes the outer side."""
    both = [asyncio.ensure_future(pump(reader, out_writer)), asyncio.ensure_future(pump(out_reader, writer))]
    try:
        with contextlib.suppress(OSError):
            await asyncio.gather(*both)
            await _closed(writer)
    finally:
        for task in both:
            task.cancel()
        out_writer.transport.abort()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end of ``reader``, then end only this direction."""
    while data := await reader.read(_PIECE):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Close after what was written has left."""
    writer.close()
    await writer.wait_closed()
