"""A typed client of the server, which survives time-outs and dropped connections without a second run."""

from __future__ import annotations

import asyncio
import random
from typing import TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from dressage_blackbox_server.errors import ServerError
from dressage_blackbox_server.model import SessionConfig, TurnRecord
from dressage_blackbox_server.wire import (
    MAX_WAIT_S,
    CreateSession,
    ErrorReply,
    PostTurn,
    SessionInfo,
    error_of,
)

Model = TypeVar("Model", bound=BaseModel)


class BlackboxClient:
    """Calls one server over an ``httpx.AsyncClient`` that the caller owns.

    Every request here is safe to send again (turns have ids, so do sessions), so a broken connection or a
    time-out is retried ``retries`` times with backoff. Errors are the server's own types; what is outside the
    contract is :class:`ServerError`.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        base_url: str,
        key: str,
        *,
        retries: int = 4,
        backoff_s: float = 0.1,
        wait_s: float = 20.0,
    ) -> None:
        self._http = http
        self._base = base_url.rstrip("/")
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        self._retries = retries
        self._backoff_s = backoff_s
        self._wait_s = min(wait_s, MAX_WAIT_S)

    async def create(self, config: SessionConfig, session_id: str) -> SessionInfo:
        """Create a session of that id, or find it."""
        asked = CreateSession(config=config, session_id=session_id)
        return _parse(await self._send("POST", "/sessions", asked), SessionInfo)

    async def session(self, session_id: str) -> SessionInfo:
        """The session and its turns."""
        return _parse(await self._send("GET", f"/sessions/{session_id}"), SessionInfo)

    async def turn(self, session_id: str, turn_id: str, prompt: str) -> TurnRecord:
        """Run, or join, the turn, and wait for its end however long that takes."""
        path = f"/sessions/{session_id}/turns"
        asked = PostTurn(turn_id=turn_id, prompt=prompt, wait_s=self._wait_s)
        turn = _parse(await self._send("POST", path, asked), TurnRecord)
        while not turn.state.final:
            url = f"{path}/{turn_id}?wait_s={self._wait_s:g}"
            turn = _parse(await self._send("GET", url), TurnRecord)
        return turn

    async def get_turn(self, session_id: str, turn_id: str) -> TurnRecord:
        """The turn as it stands."""
        return _parse(await self._send("GET", f"/sessions/{session_id}/turns/{turn_id}"), TurnRecord)

    async def cancel(self, session_id: str, turn_id: str) -> TurnRecord:
        """End the turn; gives it as it then stands."""
        path = f"/sessions/{session_id}/turns/{turn_id}/cancel"
        return _parse(await self._send("POST", path), TurnRecord)

    async def delete(self, session_id: str) -> None:
        """End and forget the session."""
        await self._send("DELETE", f"/sessions/{session_id}")

    async def _send(self, method: str, path: str, body: BaseModel | None = None) -> httpx.Response:
        # Without what was not given: a uuid drawn here would make the same request again another one.
        content = body.model_dump_json(exclude_unset=True).encode() if body is not None else b""
        for attempt in range(self._retries + 1):
            try:
                response = await self._http.request(
                    method,
                    f"{self._base}{path}",
                    content=content,
                    headers=self._headers,
                    timeout=self._wait_s + 10.0,
                )
            except httpx.TransportError as error:
                if attempt == self._retries:
                    raise ServerError(
                        f"{method} {path} got no reply from {self._base}: {type(error).__name__}: {error}"
                    ) from error
                jitter = 0.5 + random.random()
                await asyncio.sleep(self._backoff_s * 2.0**attempt * jitter)
            else:
                return _checked(response)
        raise AssertionError("unreachable: the loop returns or raises")


def _checked(response: httpx.Response) -> httpx.Response:
    if response.is_success:
        return response
    try:
        error = ErrorReply.model_validate_json(response.content).error
    except ValidationError:
        raise ServerError(f"the server answered {response.status_code}: {response.text[:500]}") from None
    raise error_of(error.code, error.message)


def _parse(response: httpx.Response, model: type[Model]) -> Model:
    try:
        return model.model_validate_json(response.content)
    except ValidationError as error:
        raise ServerError(f"the server's answer is outside its contract: {error}") from error
