"""A shard: a whole proxy over its own store, serving connections that its parent hands over."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dressage_proxy.app import Proxy, running
from dressage_proxy.asgi import Receive, Scope, Send
from dressage_proxy.serving import Server, http_server, serving, settle_garbage_collector, stop_event
from dressage_proxy.session_ids import session_in, shard_of
from dressage_proxy.shards.forward import Peer

FRONT = "front.sock"
_CHANNEL_BYTES = 64
log = logging.getLogger("dressage.proxy")


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """Which shard it is, of how many, and where its family's sockets are."""

    index: int
    count: int
    folder: Path
    channel: int
    """Descriptor by which the parent hands connections over; its end is the parent's end."""

    def socket_of(self, shard: int) -> Path:
        """The Unix socket of a shard."""
        return self.folder / f"{shard}.sock"


class ShardApp:
    """What handed-over connections are served by. A connection may carry requests of any session and of the
    control plane: those that are not of this shard are passed on."""

    def __init__(self, place: ShardPlace, own: object, peers: Sequence[Peer], front: Peer) -> None:
        self._place = place
        self._own = own
        self._peers = peers
        self._front = front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            return
        session = session_in(scope["path"])
        if session is None and not scope["path"].startswith("/s/"):
            await self._front.forward(scope, receive, send)
            return
        shard = self._place.index if session is None else shard_of(session, self._place.count)
        if shard == self._place.index:
            await self._own(scope, receive, send)  # type: ignore[operator]
        else:
            await self._peers[shard].forward(scope, receive, send)


async def serve_shard(proxy: Proxy, place: ShardPlace, base_url: str, state: Mapping[str, Any]) -> None:
    """Serve until SIGTERM, or until the parent is gone. ``state`` is what all shards were told before."""
    stop = stop_event()
    if state.get("version") is not None:
        await proxy.controller.resume(state["version"])
    if state.get("paused"):
        await proxy.controller.pause(None, 0)
    async with running(proxy):
        own = proxy.app(base_url)
        peers = [Peer(place.socket_of(shard)) for shard in range(place.count)]
        front = Peer(place.folder / FRONT)
        direct = http_server(ShardApp(place, own, peers, front))
        direct.config.load()
        path = place.socket_of(place.index)
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen(2048)
        settle_garbage_collector()
        with socket.socket(fileno=place.channel) as channel:
            async with serving([(http_server(own), listener)]):
                _adopt_all(channel, direct, stop)
                print(json.dumps({"event": "ready", "shard": place.index}), flush=True)
                await stop.wait()
                asyncio.get_running_loop().remove_reader(channel.fileno())
                await proxy.drain()
                await _shut(direct)
        for peer in (*peers, front):
            await peer.close()


def _adopt_all(channel: socket.socket, server: Server, stop: asyncio.Event) -> None:
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
            asyncio.get_running_loop().remove_reader(channel.fileno())
            stop.set()  # the parent is gone
            return
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
