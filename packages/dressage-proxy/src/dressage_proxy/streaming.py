"""Server-sent event streams while their reply is made: held back until there is something to say, and kept
alive meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dressage_proxy.asgi import Send
from dressage_proxy.attempts import Attempt
from dressage_proxy.dialects.base import Writer

_SSE = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]


class Stream:
    """A server-sent event stream whose headers are held back until there is something to say."""

    def __init__(self, send: Send, writer: Writer, keepalive_s: float) -> None:
        self._send = send
        self._writer = writer
        self.keepalive_s = keepalive_s
        self.started = False

    async def keep_alive(self, prompt_tokens: int) -> None:
        """Say in the dialect's own way that the reply is being made; 0 tokens: not known yet."""
        head = b"" if self.started else self._writer.head(prompt_tokens)
        await self._start()
        body = head + self._writer.keep_alive()
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self, body: bytes) -> None:
        """Say the rest."""
        await self._start()
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _start(self) -> None:
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _SSE})


class Beat:
    """Keeps a stream alive while its reply is made; where that fails, ``failed`` is called. What it began to
    say is said to its end: the reply must not come into the middle of it."""

    def __init__(self, stream: Stream | None, attempt: Attempt, failed: Callable[[], None]) -> None:
        self._stream = stream
        self._attempt = attempt
        self._failed = failed
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._over = False

    async def __aenter__(self) -> None:
        if self._stream is not None:
            self._wait(self._stream)

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await asyncio.wait({self._task})

    def _wait(self, stream: Stream) -> None:
        if not self._over:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(stream.keepalive_s, self._begin, stream)

    def _begin(self, stream: Stream) -> None:
        self._task = asyncio.create_task(self._beat(stream))

    async def _beat(self, stream: Stream) -> None:
        try:
            await stream.keep_alive(self._attempt.known.prompt_tokens)
        except OSError:
            self._failed()
        else:
            self._wait(stream)
