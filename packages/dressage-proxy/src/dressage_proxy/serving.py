"""The HTTP servers of a process, and its end: one place that knows uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dressage_proxy.asgi import GONE

_GC_YOUNG = 20_000
_GRACE_S = 10


class OneWrite:
    """A transport whose writes leave together, once a reply is whole or the event loop's round ends: headers
    and body are one system call, and the client wakes up once."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._waiting: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Send with what else is written in this round."""
        if not self._waiting:
            self._loop.call_soon(self.flush)
        self._waiting.append(data)

    def flush(self) -> None:
        """Send what waits now."""
        waiting, self._waiting = self._waiting, []
        if waiting and not self._transport.is_closing():
            self._transport.write(b"".join(waiting))

    def close(self) -> None:
        """Close after what waits."""
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Protocol(HttpToolsProtocol):
    """uvicorn's, over such a transport; its requests are told when their connection is closed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """asyncio.Protocol."""
        self._writes = OneWrite(transport, self.loop)
        super().connection_made(self._writes)  # type: ignore[arg-type]
        self._extensions = {GONE: self.loop.create_future()}

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio.Protocol."""
        if not self._extensions[GONE].done():
            self._extensions[GONE].set_result(None)
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """httptools."""
        super().on_message_begin()
        self.scope["extensions"] = self._extensions  # type: ignore[typeddict-item]

    def on_response_complete(self) -> None:
        """uvicorn: nothing more is to come that could leave with it."""
        self._writes.flush()
        super().on_response_complete()


class Server(uvicorn.Server):
    """Leaves signals to its caller: several servers share a process."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        """Nothing to capture."""
        yield

    async def adopt(self, connection: socket.socket) -> None:
        """Serve a connection that another process or socket accepted."""
        await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)

    def _protocol(self) -> asyncio.Protocol:
        return Protocol(self.config, self.server_state, {})


def http_server(app: object) -> Server:
    """A server of an ASGI application, not started."""
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=Protocol,
        ws="none",
        lifespan="off",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        log_level="warning",
        timeout_graceful_shutdown=_GRACE_S,
        timeout_keep_alive=120,
    )
    return Server(config)


@asynccontextmanager
async def serving(servers: Sequence[tuple[Server, socket.socket]]) -> AsyncIterator[None]:
    """Started servers, each on a listening socket; stopped gracefully at the end."""
    tasks = [asyncio.create_task(server.serve([listener])) for server, listener in servers]
    try:
        while not all(server.started for server, _ in servers):
            for task in tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.005)
        yield
    finally:
        for server, _ in servers:
            server.should_exit = True
        await asyncio.gather(*tasks)


def stop_event() -> asyncio.Event:
    """Set by SIGTERM and SIGINT from now on."""
    stop = asyncio.Event()
    on_signals(stop.set)
    return stop


def on_signals(call: Callable[[], Any]) -> None:
    """Call it at SIGTERM and SIGINT."""
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, call)


def settle_garbage_collector() -> None:
    """A tokenizer is hundreds of thousands of objects that live as long as the process: they are never looked
    at again. Turns add objects that stay, so that a look at the youngest ones is rarely worth its time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_YOUNG, 20, 20)
