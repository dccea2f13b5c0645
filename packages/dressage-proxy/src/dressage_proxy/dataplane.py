"""The data plane as plain ASGI: no key but the session id in the path, as little as possible per request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from dressage_proxy.asgi import Receive, Scope, Send, as_request_error, retry_after, send_reply, watching
from dressage_proxy.attempts import Attempt
from dressage_proxy.config import ProxyConfig
from dressage_proxy.dialects.base import Dialect, ModelReply, ModelRequest
from dressage_proxy.dialects.chat import CHAT, model_entry, models_body
from dressage_proxy.dialects.memo import Memo
from dressage_proxy.dialects.messages import MESSAGES
from dressage_proxy.dialects.params import dumps
from dressage_proxy.dialects.responses import RESPONSES
from dressage_proxy.errors import ClientGoneError, NotFoundError, RequestError
from dressage_proxy.metrics import Metrics
from dressage_proxy.pipeline import Pipeline
from dressage_proxy.records import record
from dressage_proxy.session import Session
from dressage_proxy.sessions import Sessions
from dressage_proxy.streaming import Beat, Stream
from dressage_proxy.surrogates import HALVES_NOTE

_COUNT = "v1/messages/count_tokens"
_DIALECTS: Mapping[str, Dialect] = {
    "v1/chat/completions": CHAT,
    "v1/responses": RESPONSES,
    "v1/messages": MESSAGES,
    _COUNT: MESSAGES,
}
_ROUTES = (
    "the base URL of OpenAI clients ends in /s/{session}/v1, that of Anthropic clients in /s/{session}; "
    "there are v1/chat/completions, v1/responses, v1/messages and v1/messages/count_tokens"
)
_KEPT_ELSEWHERE: Mapping[str, str] = {
    "v1/responses/": "responses",
    "v1/chat/completions/": "chat completions",
    "v1/messages/batches": "batches",
    "v1/batches": "batches",
    "v1/conversations": "conversations",
    "v1/files": "files",
}
"""What the vendors' servers keep for their clients, by the beginning of its path."""
_ANTHROPIC_HEADER = "anthropic-version"


class DataPlane:
    """Answers ``/s/{session}/v1/…``."""

    def __init__(self, config: ProxyConfig, sessions: Sessions, pipeline: Pipeline, metrics: Metrics) -> None:
        self._config = config
        self._sessions = sessions
        self._pipeline = pipeline
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request. Errors leave in the dialect's own shape."""
        status, call = 200, None
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        _, first, session_id, rest = [*scope["path"].split("/", 3), "", "", ""][:4]
        rest = "/".join(filter(None, rest.split("/")))  # there are base URLs that end in a slash
        dialect = _DIALECTS.get(rest) or (MESSAGES if _ANTHROPIC_HEADER in headers else CHAT)
        try:
            if first != "s":
                raise NotFoundError(
                    f"no route {scope['method']} {scope['path']}: the session id is missing",
                    code="unknown_route",
                    fix="use the base URL that POST /sessions returned",
                )
            session = self._sessions.live(session_id)
            if rest in _DIALECTS and scope["method"] == "POST":
                call = _Call(dialect, session, headers, scope, receive, send)
                status = await (self._count(call) if rest == _COUNT else self._answer(call))
            else:
                await self._look(dialect, scope, rest, send)
        except ClientGoneError:
            status = 499
        except Exception as failure:  # noqa: BLE001 - logged and told
            error = as_request_error(failure)
            status = error.status
            await send_reply(send, status, dialect.error_body(error), retry_after(error))
        finally:
            self._metrics.requests.labels(dialect.name, str(status)).inc()
            if call is not None:
                call.session.called(status)

    async def _look(self, dialect: Dialect, scope: Scope, rest: str, send: Send) -> None:
        """What agents ask besides a model call: the models, and probes whether anybody is there."""
        method = scope["method"]
        if method not in ("GET", "HEAD"):
            raise NotFoundError(
                f"no route {method} /s/…/{rest}",
                code="unknown_route",
                fix=_ROUTES if method == "POST" else None,
            )
        kept = next((name for name in _KEPT_ELSEWHERE if rest.startswith(name)), None)
        if kept is not None:
            raise NotFoundError(f"the proxy keeps no {_KEPT_ELSEWHERE[kept]}", code="not_kept")
        model = self._config.model_name
        body = b"{}"
        if rest == "v1/models":
            query = scope.get("query_string", b"").decode("latin-1")
            body = MESSAGES.models_body(model, query) if dialect is MESSAGES else models_body(model)
        elif rest.startswith("v1/models/"):
            name = rest.removeprefix("v1/models/")
            body = dumps(MESSAGES.model_entry(name) if dialect is MESSAGES else model_entry(name))
        await send_reply(send, 200, b"" if method == "HEAD" else body)

    async def _count(self, call: _Call) -> int:
        body, _ = await self._body(call)
        request = MESSAGES.parse(body, call.headers, Memo())
        tokens = await self._pipeline.count(call.session, request)
        await send_reply(call.send, 200, MESSAGES.count_body(tokens))
        return 200

    async def _answer(self, call: _Call) -> int:
        """Answer; the status that it came to, which a stream tells inside where it had begun."""
        body, mended = await self._body(call)
        with call.session.memo.recalling(partial(self._pipeline.said, call.session)) as memo:
            request = call.dialect.parse(body, call.headers, memo)
        if mended:
            request = replace(request, notes=(*request.notes, HALVES_NOTE))
        writer = call.dialect.writer(request, request.model or self._config.model_name)
        if not request.stream:
            attempt, reply = await self._made(call, request, None)
            await self._deliver(call, attempt, [writer.body(reply)])
            return 200
        stream = Stream(call.send, writer, self._config.keepalive_s)
        try:
            attempt, reply = await self._made(call, request, stream)
        except ClientGoneError:
            raise
        except Exception as failure:
            if not stream.started:
                raise
            error = as_request_error(failure)
            await stream.end(writer.failed(error))
            return error.status
        await self._deliver(call, attempt, writer.events(reply), stream)
        return 200

    async def _made(
        self, call: _Call, request: ModelRequest, stream: Stream | None
    ) -> tuple[Attempt, ModelReply]:
        """The reply, while the client is there; a stream is kept alive meanwhile. Raises ClientGoneError."""
        attempt = self._pipeline.join(call.session, request)
        left = False

        def leave(_: object = None) -> None:
            nonlocal left
            if not left:
                left = True
                self._pipeline.leave(call.session, attempt)

        ended = False
        try:
            with watching(call.scope, call.receive) as gone:
                gone.add_done_callback(leave)
                try:
                    async with Beat(stream, attempt, leave):
                        if attempt.turn is not None:
                            await attempt.make()
                        else:
                            await asyncio.wait({attempt.ended, gone}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    gone.remove_done_callback(leave)
                ended = not gone.done()
        finally:
            if not ended:
                leave()
        if left:
            raise ClientGoneError("the client closed the connection")
        return attempt, self._pipeline.made(call.session, attempt)

    async def _deliver(
        self,
        call: _Call,
        attempt: Attempt,
        chunks: Iterable[bytes],
        stream: Stream | None = None,
    ) -> None:
        try:
            body = b"".join(chunks)  # whole before its headers: what fails here still has a status to tell
            if stream is not None:
                await stream.end(body)
            else:
                await send_reply(call.send, 200, body)
        except OSError as error:
            self._pipeline.leave(call.session, attempt)
            raise ClientGoneError("the client closed the connection") from error
        except BaseException:
            self._pipeline.leave(call.session, attempt)
            raise
        self._pipeline.delivered(attempt)

    async def _body(self, call: _Call) -> tuple[Mapping[str, Any], bool]:
        """The request's object, and whether it was mended."""
        encoding = call.headers.get("content-encoding", "identity")
        if encoding.lower() not in ("", "identity"):
            raise RequestError(
                f"Content-Encoding {encoding!r} is not supported",
                field="Content-Encoding",
                fix="send the body as it is",
                code="unsupported_encoding",
                status=415,
            )
        parts, size = [], 0
        while True:
            message = await call.receive()
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
            body, mended = self._pipeline.load(call.session, b"".join(parts))
        except ValueError as error:
            raise RequestError(f"the request body is no JSON: {error}", code="invalid_json") from error
        if not isinstance(body, dict):
            raise RequestError("the request body must be a JSON object", code="invalid_json")
        return body, mended


@record
class _Call:
    """One model call on the wire; header names are lower case."""

    dialect: Dialect
    session: Session
    headers: Mapping[str, str]
    scope: Scope
    receive: Receive
    send: Send
