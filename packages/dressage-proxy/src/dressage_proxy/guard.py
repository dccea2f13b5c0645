"""The door of the control plane: who is let in, and how much may be brought along.

It stands before everything that reads a body, so that who has no key cannot fill this process with one.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import orjson

from dressage_proxy.asgi import Receive, Scope, Send, send_reply

UNAUTHORIZED = "the control key is missing or wrong"
UNAUTHORIZED_FIX = "send Authorization: Bearer <control key>"
CHALLENGE = {"WWW-Authenticate": "Bearer"}
"""What a 401 must say by RFC 9110, 11.6.1."""
_GUARDED = ("/sessions", "/rollout", "/metrics")
_DATA = "/s/"
_App = Callable[[Scope, Receive, Send], Awaitable[None]]


def key_fits(authorization: str, key: str) -> bool:
    """Whether an Authorization header brings the key. The scheme's case says nothing (RFC 9110, 11.1)."""
    scheme, _, given = authorization.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), key.encode())


@dataclass(frozen=True, slots=True)
class Guard:
    """ASGI middleware. Requests for the control plane's routes need the key, and none of them may be larger
    than ``max_body_bytes``; what is for the data plane passes, since that has rules of its own."""

    app: _App
    key: str
    max_body_bytes: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http" or scope["path"].startswith(_DATA):
            await self.app(scope, receive, send)
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        path = scope["path"]
        guarded = any(path == route or path.startswith(f"{route}/") for route in _GUARDED)
        if guarded and not key_fits(headers.get(b"authorization", ""), self.key):
            error = {"code": "unauthorized", "message": UNAUTHORIZED, "fix": UNAUTHORIZED_FIX}
            await _refuse(send, 401, error, [(b"www-authenticate", b"Bearer")])
            return
        body = _Body(receive, send, self.max_body_bytes)
        await self.app(scope, body.receive, body.send)


class _Body:
    """A request's body up to a size; a larger one is refused in place of what the application says."""

    def __init__(self, receive: Receive, send: Send, limit: int) -> None:
        self._receive = receive
        self._send = send
        self._limit = limit
        self._size = 0
        self._refused = False

    async def receive(self) -> dict[str, object]:
        """ASGI."""
        if self._refused:
            return {"type": "http.disconnect"}
        message = dict(await self._receive())
        body = message.get("body", b"")
        assert isinstance(body, bytes)
        self._size += len(body)
        if self._size <= self._limit:
            return message
        self._refused = True
        text = f"the request body is larger than {self._limit} bytes"
        await _refuse(self._send, 413, {"code": "body_too_large", "message": text})
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """ASGI."""
        if not self._refused:
            await self._send(message)


async def _refuse(
    send: Send, status: int, error: dict[str, str], headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    await send_reply(send, status, orjson.dumps({"error": error}), headers or ())
