"""The state machine over HTTP. Every path but /health asks for ``Authorization: Bearer <key>``."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dressage_blackbox_server.agents import agent_status
from dressage_blackbox_server.errors import BlackboxError, RequestError
from dressage_blackbox_server.model import TurnRecord
from dressage_blackbox_server.service import BlackboxService
from dressage_blackbox_server.session import AgentSession
from dressage_blackbox_server.wire import (
    MAX_BODY_BYTES,
    MAX_WAIT_S,
    CreateSession,
    ErrorBody,
    ErrorReply,
    PostTurn,
    SessionInfo,
    status_of,
)

Model = TypeVar("Model", bound=BaseModel)
Handler = Callable[[Request], Awaitable[Response]]


def build_app(service: BlackboxService, key: str) -> Starlette:
    """The application. Raises :class:`RequestError` where ``key`` is empty."""
    if not key:
        raise RequestError("the key is empty: anyone could drive the agents; give one")
    api = _Api(service)

    def guarded(handler: Handler) -> Handler:
        async def guard(request: Request) -> Response:
            given = request.headers.get("authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {key}".encode()):
                fix = "send Authorization: Bearer <key>"
                return _error(401, ErrorBody(code="unauthorized", message="wrong or no key", fix=fix))
            return await handler(request)

        return guard

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await service.aclose()

    turn = "/sessions/{session_id}/turns/{turn_id}"
    return Starlette(
        lifespan=lifespan,
        exception_handlers={BlackboxError: _on_blackbox_error, _BodyError: _on_body_error},
        routes=[
            Route("/health", _health, methods=["GET"]),
            Route("/agents", guarded(api.agents), methods=["GET"]),
            Route("/sessions", guarded(api.create), methods=["POST"]),
            Route("/sessions/{session_id}", guarded(api.session), methods=["GET"]),
            Route("/sessions/{session_id}", guarded(api.delete), methods=["DELETE"]),
            Route("/sessions/{session_id}/turns", guarded(api.post_turn), methods=["POST"]),
            Route(turn, guarded(api.turn), methods=["GET"]),
            Route(f"{turn}/cancel", guarded(api.cancel), methods=["POST"]),
        ],
    )


class _Api:
    """The handlers, each for one path and method."""

    def __init__(self, service: BlackboxService) -> None:
        self._service = service

    def _session(self, request: Request) -> AgentSession:
        return self._service.get(request.path_params["session_id"])

    async def agents(self, request: Request) -> Response:
        """Known agents, with the versions found here."""
        found = [await agent_status(adapter) for adapter in self._service.agents.values()]
        rows = [{"name": a.name, "dialects": a.dialects, "version": a.version, "install": a.install}
                for a in found]  # fmt: skip
        return JSONResponse({"agents": rows})

    async def create(self, request: Request) -> Response:
        """201 with a new session, 200 with the one that is there."""
        asked = await _body(request, CreateSession)
        session, is_new = self._service.create(asked.config, asked.session_id)
        return _json(_info(session), 201 if is_new else 200)

    async def session(self, request: Request) -> Response:
        """The session and its turns."""
        return _json(_info(self._session(request)))

    async def delete(self, request: Request) -> Response:
        """End and forget; 204 also where there is none."""
        await self._service.delete(request.path_params["session_id"])
        return Response(status_code=204)

    async def post_turn(self, request: Request) -> Response:
        """Accept or join a turn, and wait up to ``wait_s`` for its end."""
        session = self._session(request)
        asked = await _body(request, PostTurn)
        session.submit(asked.turn_id, asked.prompt)
        return _turn(await session.wait(asked.turn_id, asked.wait_s))

    async def turn(self, request: Request) -> Response:
        """The turn as it stands, after waiting up to ``?wait_s=`` for its end."""
        wait_s = _wait_s(request)
        return _turn(await self._session(request).wait(request.path_params["turn_id"], wait_s))

    async def cancel(self, request: Request) -> Response:
        """End the turn; gives it as it then stands."""
        return _turn(await self._session(request).cancel(request.path_params["turn_id"]))


class _BodyError(Exception):
    """A body that is not what the path takes."""

    def __init__(self, status: int, body: ErrorBody) -> None:
        super().__init__(body.message)
        self.status = status
        self.body = body


async def _health(request: Request) -> Response:
    return JSONResponse({"ok": True})


async def _body(request: Request, model: type[Model]) -> Model:
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            told = f"the body is above {MAX_BODY_BYTES} bytes"
            raise _BodyError(413, ErrorBody(code="too_large", message=told))
    try:
        return model.model_validate_json(bytes(data))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or None
        raise _BodyError(
            400, ErrorBody(code="bad_request", message=f"{field or 'body'}: {first['msg']}", field=field)
        ) from error


def _wait_s(request: Request) -> float:
    text = request.query_params.get("wait_s", "0")
    try:
        wait_s = float(text)
    except ValueError:
        wait_s = -1.0
    if not 0 <= wait_s <= MAX_WAIT_S:
        told = f"wait_s is {text!r}: give seconds from 0 to {MAX_WAIT_S:g}"
        raise _BodyError(400, ErrorBody(code="bad_request", message=told, field="wait_s"))
    return wait_s


def _info(session: AgentSession) -> SessionInfo:
    return SessionInfo(
        session_id=session.session_id, state=session.state, config=session.config, turns=session.turns
    )


def _json(model: BaseModel, status: int = 200) -> Response:
    return Response(model.model_dump_json(), status_code=status, media_type="application/json")


def _turn(turn: TurnRecord) -> Response:
    return _json(turn, 200 if turn.state.final else 202)


def _error(status: int, body: ErrorBody) -> Response:
    return _json(ErrorReply(error=body), status)


async def _on_blackbox_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, BlackboxError)
    status, code = status_of(error)
    return _error(status, ErrorBody(code=code, message=str(error)))


async def _on_body_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, _BodyError)
    return _error(error.status, error.body)
