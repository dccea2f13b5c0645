"""The data plane as plain ASGI: no key but the session id in the path, as little as possible per request."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

import orjson
from dressage_store import StoreError

from dressage_proxy.config import ProxyConfig
from dressage_proxy.dialects import chat
from dressage_proxy.dialects.base import ModelReply, ModelRequest
from dressage_proxy.errors import ClientGoneError, NotFoundError, RequestError
from dressage_proxy.metrics import Metrics
from dressage_proxy.pipeline import Attempt, Pipeline
from dressage_proxy.session import Session
from dressage_proxy.sessions import Sessions

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_JSON = (b"content-type", b"application/json")
_SSE = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
_LATER = ("v1/responses", "v1/messages", "v1/messages/count_tokens")
log = logging.getLogger("dressage.proxy")


class DataPlane:
    """Answers ``/s/{session}/v1/…``."""

    def __init__(self, config: ProxyConfig, sessions: Sessions, pipeline: Pipeline, metrics: Metrics) -> None:
        self._config = config
        self._sessions = sessions
        self._pipeline = pipeline
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request. Errors leave in the dialect's own shape."""
        status = 200
        try:
            with _as_request_errors():
                await self._route(scope, receive, send)
        except ClientGoneError:
            status = 499
        except RequestError as error:
            status = error.status
            await _send(send, status, chat.error_body(error), _retry_after(error))
        finally:
            self._metrics.requests.labels("chat", str(status)).inc()

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        _, first, session_id, rest = [*scope["path"].split("/", 3), "", "", ""][:4]
        rest = rest.rstrip("/")
        method = scope["method"]
        if first != "s":
            raise NotFoundError(
                f"no route {method} {scope['path']}: the session id is missing",
                code="unknown_route",
                fix="use the base URL that POST /sessions returned",
            )
        session = self._sessions.live(session_id)
        if rest == "v1/chat/completions" and method == "POST":
            await self._chat(session, scope, receive, send)
        elif rest == "v1/models" and method in ("GET", "HEAD"):
            await _send(send, 200, b"" if method == "HEAD" else chat.models_body(self._config.model_name))
        elif rest in _LATER and method == "POST":
            raise NotFoundError(
                f"the dialect of /{rest} is not served",
                code="unsupported_dialect",
                fix="use /v1/chat/completions",
            )
        elif method in ("GET", "HEAD"):
            await _send(send, 200, b"" if method == "HEAD" else b"{}")
        else:
            raise NotFoundError(f"no route {method} /s/…/{rest}", code="unknown_route")

    async def _chat(self, session: Session, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._body(receive)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        request = chat.parse_request(body, headers)
        model = body.get("model") if isinstance(body.get("model"), str) else self._config.model_name
        reply_id = "chatcmpl-" + uuid.uuid4().hex
        streamed, include_usage = chat.flag(body, "stream"), chat.include_usage(body)
        if not streamed:
            attempt, reply = await self._made(session, request, receive, None)
            payload = chat.reply_body(reply, model or "", reply_id)
            await self._deliver(session, attempt, reply, receive, send, [payload], [_JSON])
            return
        stream = _Stream(send, self._config.keepalive_s)
        try:
            with _as_request_errors():
                attempt, reply = await self._made(session, request, receive, stream)
        except RequestError as error:
            if not stream.started:
                raise
            await stream.end([chat.error_event(error)])
            return
        events = chat.reply_events(reply, model or "", reply_id, include_usage=include_usage)
        await self._deliver(session, attempt, reply, receive, send, events, _SSE, stream)

    async def _made(
        self, session: Session, request: ModelRequest, receive: Receive, stream: _Stream | None
    ) -> tuple[Attempt, ModelReply]:
        """The reply, while the client is there; a stream is kept alive meanwhile. Raises ClientGoneError."""
        answer = asyncio.create_task(self._pipeline.answer(session, request))
        gone = asyncio.create_task(_gone(receive))
        try:
            while not answer.done():
                await asyncio.wait(
                    {answer, gone},
                    timeout=stream.keepalive_s if stream else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if gone.done() and not answer.done():
                    raise ClientGoneError("the client closed the connection")
                if stream is not None and not answer.done():
                    await stream.keep_alive()
            attempt, reply = answer.result()
            if gone.done():
                self._pipeline.lost(session, attempt, reply)
                raise ClientGoneError("the client closed the connection")
            return attempt, reply
        finally:
            gone.cancel()
            if not answer.done():
                answer.cancel()
                await asyncio.wait({answer})
            if not answer.cancelled():
                answer.exception()  # retrieved: nobody is left to be told

    async def _deliver(
        self,
        session: Session,
        attempt: Attempt,
        reply: ModelReply,
        receive: Receive,
        send: Send,
        chunks: Iterable[bytes],
        headers: list[tuple[bytes, bytes]],
        stream: _Stream | None = None,
    ) -> None:
        try:
            if stream is not None:
                await stream.end(chunks)
            else:
                await _send(send, 200, b"".join(chunks), [], headers)
        except OSError as error:
            self._pipeline.lost(session, attempt, reply)
            raise ClientGoneError("the client closed the connection") from error
        except asyncio.CancelledError:
            self._pipeline.lost(session, attempt, reply)
            raise
        self._pipeline.delivered(attempt)

    async def _body(self, receive: Receive) -> Mapping[str, Any]:
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError("the client closed the connection before its request was whole")
            part = message.get("body", b"")
            size += len(part)
            if size > self._config.max_body_bytes:
                raise RequestError(
                    f"the request body is larger than {self._config.max_body_bytes} bytes",
                    code="body_too_large",
                    status=413,
                )
            parts.append(part)
            if not message.get("more_body"):
                break
        try:
            body = orjson.loads(b"".join(parts))
        except orjson.JSONDecodeError as error:
            raise RequestError(f"the request body is no JSON: {error}", code="invalid_json") from error
        if not isinstance(body, dict):
            raise RequestError("the request body must be a JSON object", code="invalid_json")
        return body


class _Stream:
    """A server-sent event stream whose headers are held back until there is something to say."""

    def __init__(self, send: Send, keepalive_s: float) -> None:
        self._send = send
        self.keepalive_s = keepalive_s
        self.started = False

    async def keep_alive(self) -> None:
        await self._start()
        await self._send({"type": "http.response.body", "body": b": working\n\n", "more_body": True})

    async def end(self, chunks: Iterable[bytes]) -> None:
        await self._start()
        await self._send({"type": "http.response.body", "body": b"".join(chunks), "more_body": False})

    async def _start(self) -> None:
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _SSE})


@contextmanager
def _as_request_errors() -> Iterator[None]:
    """Whatever fails inside is told in the dialect's own shape."""
    try:
        yield
    except (RequestError, ClientGoneError):
        raise
    except (OSError, StoreError) as error:
        log.exception("the store failed")
        raise RequestError(
            f"the store failed: {error}", code="store_failed", status=503, retry_after_s=5
        ) from error
    except Exception as error:
        log.exception("a request failed")
        raise RequestError("the proxy failed, see its log", code="internal_error", status=500) from error


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(
    send: Send,
    status: int,
    body: bytes,
    extra: Iterable[tuple[bytes, bytes]] = (),
    headers: Iterable[tuple[bytes, bytes]] = (_JSON,),
) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length, *extra]})
    await send({"type": "http.response.body", "body": body})


def _retry_after(error: RequestError) -> list[tuple[bytes, bytes]]:
    if error.retry_after_s is None:
        return []
    return [(b"retry-after", str(int(error.retry_after_s)).encode())]
