"""The parent of the shards: it starts them, starts them again, and hands connections over."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from dressage_proxy.asgi import Receive, Scope, Send, send_reply
from dressage_proxy.config import ProxyConfig
from dressage_proxy.gate import GateFile
from dressage_proxy.guard import Guard
from dressage_proxy.serving import Server, Stop, http_server, serving, stop_at_signals
from dressage_proxy.session_ids import session_in, shard_of
from dressage_proxy.shards.dispatch import Dispatcher
from dressage_proxy.shards.forward import Peer, refuse
from dressage_proxy.shards.front import Front
from dressage_proxy.shards.shard import Shard
from dressage_proxy.shards.worker import FRONT


class Supervisor:
    """All shards and the front, over a listening socket for the data plane and one for control, if apart.

    ``config`` is the configuration that every shard has, but for its own place; ``gate`` keeps what all of
    them were told. Raises ConfigError where it cannot be read.
    """

    def __init__(
        self, config: ProxyConfig, folder: Path, command: Sequence[str], key_variable: str, gate: GateFile
    ) -> None:
        self._folder = folder
        self._drain_s = config.drain_s
        self._peers = [
            Peer(folder / f"{index}.sock", config.max_body_bytes) for index in range(config.shards)
        ]
        self.front = Front(self._peers, gate, lambda index: self.shards[index].up)
        self._away = http_server(_Away())
        self._away.config.load()
        self._guarded = Guard(self.front, config.control_key, config.max_body_bytes)
        environment = {**os.environ, key_variable: config.control_key}
        command = [*command, "--shard-folder", str(folder)]
        self.shards = [Shard(index, command, environment, self._state) for index in range(config.shards)]

    def _state(self) -> str:
        return self.front.state

    async def serve(
        self, data: socket.socket, control: socket.socket | None, ready: dict[str, object]
    ) -> None:
        """Until SIGTERM or SIGINT; a second one ends the drain. Prints ``ready`` as a JSON line once every
        shard is up."""
        stop = stop_at_signals()
        server = http_server(self._guarded)
        server.config.load()
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        inner.bind(str(self._folder / FRONT))
        inner.listen(2048)
        servers: list[tuple[Server, socket.socket]] = [(server, inner)]
        if control is not None:
            servers.append((http_server(_ControlAlone(self._guarded)), control))
        kept = [asyncio.create_task(shard.keep()) for shard in self.shards]
        try:
            async with serving(servers):
                await self._all_up(kept, stop)
                if not stop.asked.is_set():
                    await self._serve(data, None if control is not None else server, ready, stop)
                await self._end_shards(stop)
        finally:
            await self._end_shards(stop)
            for task in kept:
                task.cancel()
            await asyncio.gather(*kept, return_exceptions=True)
            for peer in self._peers:
                await peer.close()

    async def _end_shards(self, stop: Stop) -> None:
        self.front.draining = True
        hurried = asyncio.create_task(self._hurry(stop))
        try:
            await asyncio.gather(*map(self._end, self.shards, self._peers))
        finally:
            hurried.cancel()

    async def _end(self, shard: Shard, peer: Peer) -> None:
        await shard.stop(self._drain_s)
        peer.end()

    async def _hurry(self, stop: Stop) -> None:
        await stop.at_once.wait()
        for shard in self.shards:
            shard.hurry()

    async def _all_up(self, kept: Sequence[asyncio.Task[None]], stop: Stop) -> None:
        up = asyncio.gather(*(shard.wait_up() for shard in self.shards))
        stopped = asyncio.create_task(stop.asked.wait())
        try:
            waited: set[asyncio.Future[Any]] = {up, stopped, *kept}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            for task in kept:
                if task.done():
                    task.result()
        finally:
            up.cancel()
            stopped.cancel()
            await asyncio.gather(up, stopped, return_exceptions=True)

    async def give(self, connection: socket.socket, path: str, server: Server | None) -> None:
        """Give a connection away by the path of its first request; see :meth:`_serve`."""
        session = session_in(path) if path.startswith("/s/") else None
        if session is None and server is not None:
            await server.adopt(connection)
            return
        shard = 0 if session is None else shard_of(session, len(self.shards))
        try:
            await self.shards[shard].hand_over(connection)
        except OSError:  # it is away for long, or has ended; a TimeoutError is one
            await self._away.adopt(connection)
        else:
            connection.close()  # the process has its own descriptor of it

    async def _serve(
        self, data: socket.socket, server: Server | None, ready: dict[str, object], stop: Stop
    ) -> None:
        """Hand connections over until every shard has ended. ``server`` takes those that name no session;
        without one the control plane is elsewhere, and any shard says that there is no such route."""

        async def give(connection: socket.socket, path: str) -> None:
            await self.give(connection, path, server)

        accepting = asyncio.create_task(Dispatcher(data, give).serve())
        print(json.dumps({**ready, "shards": [shard.pid for shard in self.shards]}), flush=True)
        try:
            await stop.asked.wait()
            await self._end_shards(stop)
        finally:
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)


class _Away:
    """ASGI: what is told to a client whose shard takes no connection. It has another one next time."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            message = "the session's process restarts: ask again"
            await refuse(scope, send, 503, "shard_unavailable", message, close=True)


class _ControlAlone:
    """ASGI: what a control plane on a port of its own answers."""

    def __init__(self, app: Guard) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/s/"):
            message = f"{scope['method']} {scope['path']}: Not Found"
            error = {"error": {"code": "unknown_route", "message": message}}
            await send_reply(send, 404, orjson.dumps(error))
            return
        await self._app(scope, receive, send)


def own_command(arguments: Sequence[str]) -> list[str]:
    """The command that starts this program again with other arguments."""
    return [sys.executable, "-m", "dressage_proxy.cli", *arguments]
