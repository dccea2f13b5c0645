"""Passing a request on to another process of the same proxy, over its Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson
from yarl import URL

from dressage_proxy.asgi import Receive, Scope, Send, send_reply

_HOP = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"te", b"upgrade", b"trailer"))
_ASKED = _HOP | {b"content-length", b"expect"}
"""The body is sent as what was read of it."""
_SAID = _HOP | {b"date"}
"""The server here says its own."""
_PATIENCE_S = 20.0
"""How long a request waits for a shard that restarts, before it is told to come again."""
_POLL_S = 0.1
log = logging.getLogger("dressage.proxy")
_UNSENT = (aiohttp.ClientConnectorError, FileNotFoundError)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer of a peer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Peer:
    """Another process, by the path of its Unix socket. Used from one event loop."""

    def __init__(self, path: Path, max_body_bytes: int) -> None:
        self._path = path
        self._max_body_bytes = max_body_bytes
        self._session: aiohttp.ClientSession | None = None
        self._ended = False

    def end(self) -> None:
        """It ended and does not start again: nobody waits for it any more."""
        self._ended = True

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        patience_s: float | None = None,
    ) -> Answer:
        """A request that may be made again, its answer read whole; a peer that restarts is waited for.

        Raises OSError or aiohttp.ClientError where no answer comes.
        """
        patience_s = _PATIENCE_S if patience_s is None else patience_s
        deadline = asyncio.get_running_loop().time() + patience_s
        while True:
            try:
                async with self._opened().request(
                    method, f"http://peer{path}", data=body or None, headers=headers
                ) as response:
                    return Answer(response.status, dict(response.headers), await response.read())
            except (aiohttp.ClientError, OSError):
                if self._ended or asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(_POLL_S)

    async def forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an ASGI request on and its answer back, piece by piece as it comes. A client that leaves ends
        the request at the peer too; a peer that is away for long is a 503 that says when to come again. A
        body that is too large is cut one byte after what the peer takes: it refuses it in its own words."""
        body = await _body(receive, self._max_body_bytes)
        if body is None:
            return
        work = asyncio.create_task(self._passed(scope, body, send))
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            for task in (work, gone):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await work

    async def _passed(self, scope: Scope, body: bytes, send: Send) -> None:
        query = scope.get("query_string", b"")
        raw = scope.get("raw_path") or scope["path"].encode()
        path = raw.decode("latin-1") + ("?" + query.decode("latin-1") if query else "")
        url = URL("http://peer" + path, encoded=True)  # as it came: "/s/x/../y" is not another path
        headers = [(name, value) for name, value in scope["headers"] if name.lower() not in _ASKED]
        started = False
        try:
            async with await self._connected(scope["method"], url, headers, body) as response:
                kept = [(n.lower(), v) for n, v in response.raw_headers if n.lower() not in _SAID]
                await send({"type": "http.response.start", "status": response.status, "headers": kept})
                started = True
                async for piece in response.content.iter_any():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        except (aiohttp.ClientError, OSError):
            if started:
                log.warning("a shard ended in the middle of a reply: its client's connection breaks off, too")
                return  # with the reply incomplete: the server here closes the connection
            message = "the session's process restarts: ask again"
            await refuse(scope, send, 503, "shard_unavailable", message)

    async def _connected(
        self, method: str, url: URL, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> aiohttp.ClientResponse:
        """Send once it can be reached: a request that never arrived may be sent again."""
        text = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
        deadline = asyncio.get_running_loop().time() + _PATIENCE_S
        while True:
            try:
                return await self._opened().request(
                    method, url, data=body or None, headers=text, allow_redirects=False
                )
            except _UNSENT:
                if self._ended or asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(_POLL_S)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(self._path), limit=0),
                timeout=aiohttp.ClientTimeout(total=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("Accept-Encoding", "User-Agent", "Content-Type"),
                auto_decompress=False,
            )
        return self._session


async def refuse(
    scope: Scope, send: Send, status: int, code: str, message: str, *, close: bool = False
) -> None:
    """An error in the control plane's shape, or for model calls in one that every dialect's clients read.
    ``close``: the next request comes over another connection."""
    error = {"code": code, "message": message}
    body: dict[str, object] = {"error": error}
    if scope["path"].startswith("/s/"):
        body = {"type": "error", "error": {"type": "api_error", **error}}
    headers = [(b"retry-after", b"1")] if status in (429, 503) else []
    if close:
        headers.append((b"connection", b"close"))
    await send_reply(send, status, orjson.dumps(body), headers)


async def _body(receive: Receive, limit: int) -> bytes | None:
    parts: list[bytes] = []
    size = 0
    while size <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if not message.get("more_body"):
            break
    return b"".join(parts)[: limit + 1]


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
