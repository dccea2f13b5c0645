"""ASGI as the data plane speaks it: a whole reply, an error in its place, whether the client is there."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from typing import Any

from dressage_store import StoreError

from dressage_proxy.errors import RequestError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

GONE = "dressage.gone"
"""An ASGI extension: a future that is done once the connection is closed. Our own server has it, and no
request needs a task of its own to watch for that."""

_JSON = (b"content-type", b"application/json")
_RETRY_AFTER_S = 1.0
"""What a refusal that may pass says where nothing better is known: agents give up where nothing is said."""
log = logging.getLogger("dressage.proxy")


def as_request_error(error: Exception) -> RequestError:
    """Whatever failed, as it is told in the dialect's own shape; to be called where it was caught."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, RecursionError):
        return RequestError("the request is nested too deeply", code="too_deep")
    if isinstance(error, OSError | StoreError):
        # A line, and not where it happened: on a full disk every call comes here, and the log may be on it.
        log.error("the store failed: %s", error)
        log.debug("it failed here:", exc_info=error)
        # Not to be told to an agent: where the store is.
        text = "the store failed: the reply could not be kept"
        return RequestError(text, code="store_failed", status=503, retry_after_s=5)
    log.exception("a request failed")
    return RequestError("the proxy failed, see its log", code="internal_error", status=500)


@contextmanager
def watching(scope: Scope, receive: Receive) -> Iterator[asyncio.Future[Any]]:
    """A future that is done once the client has closed the connection; to be asked after its request was
    read."""
    gone = scope.get("extensions", {}).get(GONE)
    if gone is not None:
        _poke(receive)
        yield gone
        return
    task = asyncio.create_task(_until_gone(receive))
    try:
        yield task
    finally:
        task.cancel()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _poke(receive: Receive) -> None:
    """Ask for more without waiting for it: a server reads on, and sees the connection's end, once it is
    asked."""
    asked = receive().__await__()
    with suppress(StopIteration):
        next(asked)
        asked.close()


async def send_reply(send: Send, status: int, body: bytes, extra: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """A whole reply in JSON, with further headers."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [_JSON, length, *extra]})
    await send({"type": "http.response.body", "body": body})


def retry_after(error: RequestError) -> list[tuple[bytes, bytes]]:
    """The header that says when to come again; none where that would change nothing."""
    delay = error.retry_after_s
    if delay is None and (error.status == 429 or error.status >= 500):
        delay = _RETRY_AFTER_S
    return [] if delay is None else [(b"retry-after", str(max(1, math.ceil(delay))).encode())]
