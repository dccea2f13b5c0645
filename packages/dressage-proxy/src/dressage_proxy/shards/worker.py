"""A shard: a whole proxy over its own store, serving connections that its parent hands over."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dressage_proxy.app import CombinedApp, Proxy, running
from dressage_proxy.asgi import Receive, Scope, Send
from dressage_proxy.errors import ConfigError
from dressage_proxy.gate import GateState, from_json
from dressage_proxy.serving import (
    Server,
    Stop,
    http_server,
    serving,
    settle_garbage_collector,
    stop_at_signals,
)
from dressage_proxy.session_ids import session_in, shard_of
from dressage_proxy.shards.forward import Peer

FRONT = "front.sock"
STATE = b"state"
"""What a shard asks its parent once it could take connections: what were all told? Asked so late, since it
may have been long in coming; what is said after that waits at its socket."""
READY = b"up"
"""What a shard tells its parent once it takes connections."""
STOP = b"stop"
"""What the parent sends to have it end once what is being done is done. No signal: who stops a whole group of
processes signals each of them, and two signals are not to be waited for."""
AT_ONCE = b"end"
"""… and where nobody wants to wait any longer."""
_CHANNEL_BYTES = 64
_STATE_BYTES = 1 << 16
log = logging.getLogger("dressage.proxy")


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """Which shard it is, of how many, and where its family's sockets are."""

    index: int
    count: int
    folder: Path
    apart: bool
    """Whether the control plane has a port of its own."""
    channel: int
    """Descriptor by which the parent hands connections over; its end is the parent's end."""

    def socket_of(self, shard: int) -> Path:
        """The Unix socket of a shard."""
        return self.folder / f"{shard}.sock"


class ShardApp:
    """What handed-over connections are served by. A connection may carry requests of any session and, where
    the two planes share a port (``front``), of the control plane: what is not of this shard is passed on."""

    def __init__(self, place: ShardPlace, own: object, peers: Sequence[Peer], front: Peer | None) -> None:
        self._place = place
        self._own = own
        self._peers = peers
        self._front = front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            return
        session = session_in(scope["path"])
        data = scope["path"].startswith("/s/")
        if not data and self._front is not None:
            await self._front.forward(scope, receive, send)
            return
        shard = shard_of(session, self._place.count) if data and session is not None else self._place.index
        if shard == self._place.index:
            await self._own(scope, receive, send)  # type: ignore[operator]
        else:
            await self._peers[shard].forward(scope, receive, send)


async def serve_shard(proxy: Proxy, place: ShardPlace, base_url: str) -> None:
    """Serve until SIGTERM, or until the parent is gone."""
    stop = stop_at_signals()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def told() -> GateState:
        # First, so that what is said after this state finds somebody to listen.
        path = place.socket_of(place.index)
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        listener.listen(2048)
        return _told(channel)

    with socket.socket(fileno=place.channel) as channel, listener:
        async with running(proxy, told):
            await _serve(proxy, place, base_url, channel, listener, stop)


async def _serve(
    proxy: Proxy,
    place: ShardPlace,
    base_url: str,
    channel: socket.socket,
    listener: socket.socket,
    stop: Stop,
) -> None:
    limit = proxy.config.max_body_bytes
    peers = [Peer(place.socket_of(shard), limit) for shard in range(place.count)]
    front = Peer(place.folder / FRONT, limit)
    handed = CombinedApp(proxy.data_app(), None)
    direct = http_server(ShardApp(place, handed, peers, None if place.apart else front))
    direct.config.load()
    settle_garbage_collector()
    async with serving([(http_server(proxy.app(base_url)), listener)]):
        _adopt_all(channel, direct, stop)
        channel.send(READY)
        await stop.asked.wait()
        await proxy.drain(stop.at_once)
        asyncio.get_running_loop().remove_reader(channel.fileno())
        await _shut(direct)
    for peer in (*peers, front):
        await peer.close()


def _told(channel: socket.socket) -> GateState:
    """What the parent says that all shards were told. Raises ConfigError where it is gone, or where it says
    that nobody waits for this one any more."""
    try:
        channel.send(STATE)
        return from_json(channel.recv(_STATE_BYTES))
    except (OSError, ValueError) as error:
        raise ConfigError("the parent of this shard is gone, or about to be") from error


def _adopt_all(channel: socket.socket, server: Server, stop: Stop) -> None:
    channel.setblocking(False)
    tasks: set[asyncio.Task[None]] = set()

    def taken() -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(channel, _CHANNEL_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            # The parent is gone: what starts in its place cannot have the store before this one has ended.
            asyncio.get_running_loop().remove_reader(channel.fileno())
            stop.asked.set()
            stop.at_once.set()
            return
        if data in (STOP, AT_ONCE):
            stop.asked.set()
        if data == AT_ONCE:
            stop.at_once.set()
        for descriptor in descriptors:
            connection = socket.socket(fileno=descriptor)
            connection.setblocking(False)
            task = asyncio.create_task(server.adopt(connection))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    asyncio.get_running_loop().add_reader(channel.fileno(), taken)


async def _shut(server: Server) -> None:
    """Let handed-over connections finish what they do, and close them."""
    for connection in list(server.server_state.connections):
        connection.shutdown()
    try:
        async with asyncio.timeout(server.config.timeout_graceful_shutdown):
            while server.server_state.connections:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.01)
    except TimeoutError:
        for task in server.server_state.tasks:
            task.cancel()
