"""One call to a gateway's OpenAI chat completions, with every failure typed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from dressage_paddock.errors import ContextOverflowError, GatewayError, GatewayRefusedError
from dressage_paddock.messages import ChatMessage, JsonObject, assistant_from_wire

OVERFLOW_CODES = frozenset({"context_length_exceeded", "context_window_exceeded", "prompt_too_long"})
"""``error.code`` values of an OpenAI-style 400 that mean "the conversation no longer fits"."""

_BUSY = frozenset({429, 502, 503, 504, 529})
_BROKEN = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ConnectTimeout)


@dataclass(frozen=True, slots=True)
class Reply:
    """One model reply: its message and the finish reason as the gateway said it."""

    message: ChatMessage
    finish_reason: str


class ChatClient:
    """Calls one session's ``/chat/completions`` over a shared, pooled ``httpx.AsyncClient``.

    A busy answer (429, 502, 503, 504, 529) is tried again after its Retry-After, ``busy_retries`` times, and
    so is a call whose connection was refused or broke: a gateway that restarts goes on with its sessions, and
    one that had recorded a reply knows the same request as a retry. No read time-out of its own: the
    rollout's wall clock bounds it.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        openai_url: str,
        *,
        model: str = "policy",
        max_tokens: int | None = None,
        busy_retries: int = 5,
    ) -> None:
        self._http = http
        self._url = f"{openai_url.rstrip('/')}/chat/completions"
        self._model = model
        self._max_tokens = max_tokens
        self._busy_retries = busy_retries

    async def complete(self, messages: Sequence[ChatMessage], tools: Sequence[JsonObject] = ()) -> Reply:
        """The model's reply to ``messages``.

        Raises :class:`ContextOverflowError`, :class:`GatewayError` (unreachable or busy for too long) or
        :class:`GatewayRefusedError`.
        """
        body: JsonObject = {"model": self._model, "messages": [m.to_wire() for m in messages]}
        if tools:
            body["tools"] = list(tools)
        if self._max_tokens is not None:
            body["max_tokens"] = self._max_tokens
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        response = await self._post(content)
        if response.status_code != 200:
            raise _refusal(response)
        return _read_reply(response)

    async def _post(self, content: bytes) -> httpx.Response:
        headers = {"content-type": "application/json"}
        timeout = httpx.Timeout(30.0, read=None)
        for attempt in range(self._busy_retries + 1):
            last = attempt == self._busy_retries
            try:
                response = await self._http.post(self._url, content=content, headers=headers, timeout=timeout)
            except httpx.TransportError as error:
                if last or not isinstance(error, _BROKEN):
                    raise GatewayError(
                        f"no reply from the gateway: {type(error).__name__}: {error}"
                    ) from error
                delay = _backoff(attempt)
            else:
                if last or response.status_code not in _BUSY:
                    return response
                delay = _retry_after(response, attempt)
            await asyncio.sleep(delay)
        raise AssertionError("unreachable: the loop returns")


def _retry_after(response: httpx.Response, attempt: int) -> float:
    try:
        return min(30.0, max(0.0, float(response.headers["retry-after"])))
    except (KeyError, ValueError):
        return _backoff(attempt)


def _backoff(attempt: int) -> float:
    return min(10.0, 0.25 * 2.0**attempt)


def _refusal(response: httpx.Response) -> ContextOverflowError | GatewayError | GatewayRefusedError:
    """The typed error of a reply that is not 200."""
    code, message = _error_of(response)
    told = f"the gateway answered {response.status_code} {code}: {message}"
    if response.status_code == 400 and code in OVERFLOW_CODES:
        return ContextOverflowError(told)
    if response.status_code >= 500 or response.status_code in _BUSY:
        return GatewayError(told)
    return GatewayRefusedError(told)


def _error_of(response: httpx.Response) -> tuple[str, str]:
    try:
        error: Any = response.json()["error"]
        return str(error.get("code") or error.get("type") or ""), str(error.get("message") or "")
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", response.text[:500]


def _read_reply(response: httpx.Response) -> Reply:
    try:
        choice = response.json()["choices"][0]
        return Reply(assistant_from_wire(choice["message"]), str(choice["finish_reason"]))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise GatewayError(f"the gateway's 200 is not a chat completion: {response.text[:500]}") from error
