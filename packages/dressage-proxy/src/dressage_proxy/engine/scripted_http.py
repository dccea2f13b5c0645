"""The scripted engine's HTTP: small ASGI helpers, and a server in this process."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import orjson
import uvicorn

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_HEADERS = [(b"content-type", b"application/json")]
_BACKLOG = 2048
_GRACE_S = 2


class RefusedError(Exception):
    """A request that is answered with an error status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


async def read_body(receive: Receive) -> bytes | None:
    """The whole body; None when the client left before its end."""
    message = await receive()
    body: bytes = message.get("body", b"")
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
    return None if message["type"] == "http.disconnect" else body


async def send_reply(send: Send, status: int, body: bytes) -> None:
    """A whole reply; 429 says to come back at once."""
    headers = [*_HEADERS, (b"content-length", b"%d" % len(body))]
    if status == 429:
        headers.append((b"retry-after", b"0"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, status: int, message: str) -> None:
    """An error in SGLang's shape."""
    await send_reply(send, status, orjson.dumps({"error": {"message": message}}))


async def send_part(send: Send) -> None:
    """A reply that announces more than it sends: the server closes the connection in its middle."""
    headers = [*_HEADERS, (b"content-length", b"1000000")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"text": "', "more_body": True})


@asynccontextmanager
async def serving(app: Callable[..., Awaitable[None]], port: int) -> AsyncIterator[str]:
    """Serve an ASGI application on the loopback; yields its base URL. Port 0 takes a free one.

    Raises OSError when the port is taken.
    """
    listener = socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=_GRACE_S,
        timeout_keep_alive=75,
    )
    config.load()
    # Started and stopped by its two ends rather than by serve(): the host keeps its signals and its loop.
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    try:
        await server.startup(sockets=[listener])
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await server.shutdown(sockets=[listener])
        listener.close()
