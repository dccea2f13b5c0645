"""Connections to engines: pooled for generation, and a pool of their own for aborts and questions.

A full data plane must not be able to starve an abort, so control requests never share connections with
/generate.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from typing import Self

import aiohttp
import orjson

from dressage_proxy.engine.http import ConnectError, Exchange, HttpPool, HttpReply
from dressage_proxy.engine.refusals import aborted, refusal, words
from dressage_proxy.engine.wire import NOTHING, Call, CallResult, decode_reply, request_body
from dressage_proxy.errors import PassingEngineError, RouterError

_THREAD_BYTES = 1 << 18
"""From here on reading a reply is worth a thread."""
_SECONDS = re.compile(r"[0-9]{1,4}")
_ERROR_TEXT = 500
_GENERATE = "/generate"
_CONNECT_S = 10.0
_RIDS = 4096
"""So many of the newest calls are told from each other by what their replies say."""


class EngineClient:
    """Calls engines by URL. Used from one event loop; ``start`` it there."""

    def __init__(self, *, timeout_s: float) -> None:
        self._data = HttpPool(timeout_s=timeout_s, connect_s=_CONNECT_S)
        self._control: aiohttp.ClientSession | None = None
        self._rids: OrderedDict[str, None] = OrderedDict()
        """Of the newest calls, oldest first."""

    async def start(self) -> None:
        """Open the pool of aborts; that of generation needs no opening."""
        self._control = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=10, sock_connect=5),
        )

    async def close(self) -> None:
        """Close both pools."""
        self._data.close()
        if self._control is not None:
            await self._control.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def forget(self, engine: str) -> None:
        """An engine is gone: keep no connection to it; what is under way goes on."""
        self._data.forget(engine)

    async def begin(self, engine: str, call: Call) -> Exchange:
        """Make one call, once; its reply is read by :meth:`result`. Raises PassingEngineError where no
        connection is made."""
        self._rids[call.rid] = None
        if len(self._rids) > _RIDS:
            self._rids.popitem(last=False)
        try:
            return await self._data.begin(engine, _GENERATE, request_body(call))
        except ConnectError as error:
            told = "the engine cannot be reached"
            raise PassingEngineError(told, detail=str(error), unreachable=True) from error

    async def result(self, engine: str, call: Call, running: Exchange) -> CallResult:
        """What a call came to; who is cancelled here may ask again, the call goes on.

        Raises PassingEngineError for 429, 5xx, lost connections and what is no engine, of which no token was
        accepted, EngineRefusalError and EngineOverflowError where the engine refuses what it is asked.
        """
        try:
            reply = await running.reply()
        except OSError as error:  # a TimeoutError is one
            detail = f"{type(error).__name__}: {error}"
            raise PassingEngineError("the engine gave no whole reply", detail=detail, lost=True) from error
        if reply.status != 200:
            return _failed(reply, call)
        try:
            if len(reply.body) > _THREAD_BYTES:
                return await asyncio.to_thread(decode_reply, reply.body, call, self._rids)
            return decode_reply(reply.body, call, self._rids)
        except PassingEngineError as error:
            if error.lost:  # it answers another call: what comes next here cannot be trusted either
                running.close()
            raise

    async def get(self, url: str) -> bytes:
        """A page of the router. Raises RouterError."""
        assert self._control is not None, "start() was not called"
        try:
            async with self._control.get(url) as response:
                body = await response.read()
                if response.status != 200:
                    raise RouterError(f"{url}: status {response.status}: {words(body)[:_ERROR_TEXT]}")
                return body
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise RouterError(f"{url}: {type(error).__name__}: {error}") from error

    async def abort(self, engine: str, rid: str) -> bool:
        """Ask the engine to abort a call. False when the engine did not take the request."""
        assert self._control is not None, "start() was not called"
        if self._control.closed:  # whoever asks last may be late
            return False
        try:
            async with self._control.post(
                f"{engine}/abort_request",
                data=orjson.dumps({"rid": rid}),
                headers={"Content-Type": "application/json"},
            ) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, ConnectionError):
            return False

    async def label(self, engine: str) -> str | None:
        """What an engine calls its weights; "" where it does not say, None where it does not answer."""
        assert self._control is not None, "start() was not called"
        try:
            async with self._control.get(f"{engine}/model_info") as response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError, ConnectionError):
            return None
        try:
            info = orjson.loads(body) if response.status == 200 else {}
        except orjson.JSONDecodeError:
            return ""
        label = info.get("weight_version") if isinstance(info, dict) else None
        return "" if label is None else str(label)

    async def healthy(self, engine: str) -> bool:
        """Whether the engine answers /health."""
        assert self._control is not None, "start() was not called"
        try:
            async with self._control.get(f"{engine}/health") as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, ConnectionError):
            return False


def _failed(reply: HttpReply, call: Call) -> CallResult:
    """What a reply with an error status comes to: an abort, or the error that it means, which is raised."""
    text = words(reply.body)
    if aborted(reply.status, text):
        return NOTHING
    after = reply.headers.get("retry-after", "")
    raise refusal(
        reply.status,
        text,
        prompt_tokens=len(call.prompt),
        max_tokens=call.max_tokens,
        delay_s=float(after) if _SECONDS.fullmatch(after) else None,
    )
