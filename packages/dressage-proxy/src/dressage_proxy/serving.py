"""The HTTP servers of a process, and its end: one place that knows uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dressage_proxy.asgi import GONE

_GC_YOUNG = 20_000
_GRACE_S = 10
_FILES = 512
"""Logs, sockets and the like, beside those of replies in the making."""
_FILES_A_REPLY = 2
_SAME_WISH_S = 0.3
log = logging.getLogger("dressage.proxy")


class OneWrite:
    """A transport whose writes leave together at the end of the event loop's round: a reply's headers and its
    body are one system call, and the client wakes up once. Many sessions' replies
    wait for each other: sent as soon as each is whole, they cost a busy process more."""

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
        super().connection_made(OneWrite(transport, self.loop))  # type: ignore[arg-type]
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
        log_config=None,  # as all else: uvicorn's own lines would be no JSON, with nothing taken out
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


class Stop:
    """What a process was told about its end. Used from one event loop."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        """To stop, once what is being done is done."""
        self.at_once = asyncio.Event()
        """Not to wait for that."""
        self._asked_at: float | None = None

    def ask(self) -> None:
        """Stop; asked again: at once. What comes right after is the same wish: a terminal and the program
        that started this one each pass one Ctrl-C on."""
        now = asyncio.get_running_loop().time()
        if self._asked_at is None:
            self._asked_at = now
            self.asked.set()
        elif now - self._asked_at > _SAME_WISH_S:
            self.at_once.set()


def stop_at_signals() -> Stop:
    """Asked by SIGTERM and SIGINT from now on."""
    stop = Stop()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.ask)
    return stop


def settle_garbage_collector() -> None:
    """A tokenizer is hundreds of thousands of objects that live as long as the process: they are never looked
    at again. Turns add objects that stay, so that a look at the youngest ones is rarely worth its time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_YOUNG, 20, 20)


def allow_open_files(replies: int) -> None:
    """Have files enough for so many replies in the making, as far as the system lets: each has a connection
    to its client and one to its engine. Says in the log where it does not."""
    wanted = _FILES_A_REPLY * replies + _FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < wanted:
        log.warning(
            "this process may open %d files, %d are for %d replies in the making: raise ulimit -n, or lower "
            "--max-in-flight",
            most,
            wanted,
            replies,
        )
