"""A typed client of the control plane."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
from dressage_segments import Segment, iter_frames, segment_from_bytes
from dressage_tito import ThinkingPolicy

from dressage_proxy.client_replies import (
    ControlError,
    Finalized,
    OpenSession,
    Paused,
    error_of,
    read,
    written,
)

__all__ = ["ControlError", "Finalized", "OpenSession", "Paused", "ProxyClient"]

_T = TypeVar("_T")
_FIRST_S = 0.1
_CAP_S = 1.0
_PASSING = ("draining", "shard_unavailable")
"""Codes of a proxy that is about to start again, and has done nothing of what was asked."""


class ProxyClient:
    """The proxy's control plane. Satisfies ``dressage_paddock.gateway.ModelGateway`` structurally.

    Every method raises ControlError. A request that the proxy never got, or that may be made twice, is made
    again for ``patience_s``: a proxy that restarts on its store has every session as it was. Use it as an
    async context manager, or call ``close``.
    """

    def __init__(
        self,
        base_url: str,
        control_key: str,
        *,
        timeout_s: float = 30.0,
        patience_s: float = 10.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._http = httpx.AsyncClient(
            base_url=base_url,
            headers={"Authorization": f"Bearer {control_key}"},
            timeout=timeout_s,
            transport=transport,
            trust_env=False,
            # None waits for another: a pause is not to stand behind hundreds of sessions that end.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
        )

    async def close(self) -> None:
        """Close the connections. What is asked, or would be asked again, after that fails at once."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(
        self,
        *,
        instance_id: str,
        group_id: str | None = None,
        rollout_id: str | None = None,
        sampling: Mapping[str, Any] | None = None,
        limits: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        thinking: ThinkingPolicy | None = None,
    ) -> OpenSession:
        """Open a session. ``sampling`` and ``limits`` are those of ``dressage_proxy.config``; ``thinking`` is
        the policy of ``ChatCodec.extend``, ``keep`` unless given."""
        body: dict[str, Any] = {
            "instance_id": instance_id,
            "group_id": group_id,
            "rollout_id": rollout_id,
            "sampling": sampling,
            "limits": limits,
            "labels": labels,
            "thinking": thinking,
        }
        given = {name: value for name, value in body.items() if value is not None}
        return await self._read(OpenSession.of, "POST", "/sessions", given)

    async def get(self, session_id: str) -> Mapping[str, Any]:
        """A session's state, steps, branches and tokens."""
        return await self._read(dict, "GET", _path(session_id))

    async def finalize(
        self, session_id: str, *, outcome: Mapping[str, Any] | None = None, failure_class: str | None = None
    ) -> Finalized:
        """End a session and publish its segments. Again: the same answer."""
        body = {"outcome": outcome, "failure_class": failure_class}
        given = {name: value for name, value in body.items() if value is not None}
        return await self._read(Finalized.of, "POST", f"{_path(session_id)}/finalize", given)

    async def segments(self, session_id: str) -> tuple[int, list[Segment]]:
        """The generation to ack, and the segments. Reading removes nothing.

        Raises BufferFormatError or InvalidFieldError of dressage_segments for bytes that are no segments.
        """
        response = await self._send("GET", f"{_path(session_id)}/segments")
        etag = response.headers.get("etag", "").strip().removeprefix("W/").strip('"')
        if not etag.isdigit():
            raise ControlError(response.status_code, "bad_reply", f"the ETag {etag!r} is no generation")
        return int(etag), [segment_from_bytes(buffer) for buffer in iter_frames(response.content)]

    async def ack(self, session_id: str, generation: int) -> None:
        """Say that a generation's segments are safe elsewhere; the proxy may forget them."""
        await self._send("POST", f"{_path(session_id)}/ack", {"generation": generation})

    async def delete(self, session_id: str) -> None:
        """Drop a session: what runs is aborted, its tokens are counted as lost."""
        await self._send("DELETE", _path(session_id))

    async def pause(
        self, session_id: str | None = None, *, timeout_s: float = 10.0, force: bool = False
    ) -> Paused:
        """Stop at token boundaries, for one session or all, and wait up to ``timeout_s`` for quiescence.
        ``force`` preempts also calls that would be spared."""
        body: dict[str, Any] = {"timeout_s": timeout_s, "force": force}
        if session_id is not None:
            body["session_id"] = session_id
        wait = self._timeout_s + timeout_s
        return await self._read(Paused.of, "POST", "/rollout/pause", body, timeout_s=wait)

    async def resume(self, version: int) -> None:
        """Go on, with weights of this version."""
        await self._send("POST", "/rollout/resume", {"version": version})

    async def rollout(self) -> Mapping[str, Any]:
        """State, version, calls in flight."""
        return await self._read(dict, "GET", "/rollout")

    async def ready(self) -> bool:
        """Whether the engines are reachable and the store is writable. False when nothing answers, too."""
        return await self._probe("/ready")

    async def health(self) -> bool:
        """Whether the process answers."""
        return await self._probe("/health")

    async def _probe(self, path: str) -> bool:
        try:
            await self._once("GET", path, None, self._timeout_s)
        except ControlError as error:
            if error.status in (0, 500, 502, 503, 504):
                return False
            raise
        return True

    async def _read(
        self,
        of: Callable[[Mapping[str, Any]], _T],
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> _T:
        return read(of, await self._send(method, path, body, timeout_s), f"{method} {path}")

    async def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float | None = None
    ) -> httpx.Response:
        deadline = time.monotonic() + self._patience_s
        for attempt in itertools.count():
            delay = min(_CAP_S, _FIRST_S * 2.0**attempt)
            try:
                return await self._once(method, path, body, timeout_s or self._timeout_s)
            except ControlError as error:
                if not _worth_another(error, method, path) or time.monotonic() + delay > deadline:
                    raise
            await asyncio.sleep(delay)
        raise AssertionError("the loop returns or raises")

    async def _once(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> httpx.Response:
        if self._http.is_closed:
            raise ControlError(0, "closed", f"{method} {path}: this client is closed", fix="make a new one")
        content = written(body, f"{method} {path}")
        headers = None if body is None else {"Content-Type": "application/json"}
        try:
            response = await self._http.request(
                method, path, content=content, headers=headers, timeout=timeout_s
            )
        except httpx.HTTPError as error:
            raise ControlError(
                0,
                "unreachable",
                f"{method} {self._http.base_url.join(path)}: {type(error).__name__}: {error}",
                fix="check that the proxy runs and that this is its control address",
            ) from error
        if not response.is_success:
            raise error_of(response)
        return response


def _worth_another(error: ControlError, method: str, path: str) -> bool:
    """Whether the same request again may do better and does no harm. Only opening a session does something
    each time that it arrives."""
    cause = error.__cause__
    if isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout):
        return True
    if isinstance(cause, httpx.NetworkError | httpx.RemoteProtocolError):
        return (method, path) != ("POST", "/sessions")
    return error.status == 503 and error.code in _PASSING


def _path(session_id: str) -> str:
    return f"/sessions/{quote(session_id, safe='')}"
