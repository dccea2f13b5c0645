"""What stands between an agent and the proxy: it writes down what is asked, and cuts streams where told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
from dressage_proxy.engine.scripted import Sampled, ScriptedEngine
from dressage_proxy.engine.scripted_http import Message, Receive, Send, read_body
from dressage_proxy.replay.traffic import Row, row_from_json

_POLL_S = 0.002
_READ_S = 0.3
"""Of a stream that is cut the agent has read what came by then."""
_EVENT = b"\n\n"
_OWN = ("host", "content-length", "transfer-encoding", "connection", "accept-encoding")


@dataclass(slots=True)
class Asked:
    """One request of the agent. ``sampled`` is the engine's call whose reply it got."""

    row: Row
    status: int = 0
    reply: bytes = b""
    sampled: Sampled | None = None
    cut: bool = False
    left: bool = False
    """The agent was gone before the first byte of a reply."""

    def told(self) -> Row:
        """The request as traffic has it: with what became of its reply."""
        answer = (
            "!drop" if self.left else "!cut" if self.cut else f"!{self.status}" if self.status >= 400 else ""
        )
        return replace(self.row, answer=answer, body=_whole(self.row.body))


@dataclass(slots=True)
class Hop:
    """An ASGI application in front of the proxy at ``target``.

    Model calls are handed on one after the other, so that each one's engine call is known; they run side by
    side all the same. ``cuts`` has the model calls, by number from 0, whose streams are cut, and after how
    many events (a negative number: so many before the end). By then the proxy has handed the reply over.
    """

    engine: ScriptedEngine
    http: httpx.AsyncClient
    agent: str = ""
    run: str = ""
    cuts: Mapping[int, int] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    calls: int = 0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def begin(self, agent: str, run: str, cuts: Mapping[int, int]) -> None:
        """Forget what was asked before."""
        self.agent, self.run, self.cuts, self.asked, self.calls = agent, run, cuts, [], 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """ASGI."""
        body = await read_body(receive)
        if body is None:
            return
        asked = Asked(self._row(scope, body))
        self.asked.append(asked)
        call = asyncio.create_task(self._call(asked, scope, body, send))
        gone = asyncio.create_task(_disconnected(receive))
        await asyncio.wait({call, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not call.done():
            asked.left = not asked.reply
            call.cancel()
        await asyncio.gather(call, gone, return_exceptions=True)
        if asked.cut:
            raise ConnectionAbortedError("the stream is cut, as told")

    def settle(self) -> list[Asked]:
        """What was asked. Calls that the agent did not wait for have theirs of the engine, too."""
        known = {id(one.sampled) for one in self.asked}
        spare = [call for call in self.engine.requests if call.fault is None and id(call) not in known]
        for one in self.asked:
            if one.left and one.sampled is None and spare:
                one.sampled = spare.pop(0)
        return self.asked

    def _row(self, scope: Message, body: bytes) -> Row:
        headers = {name.decode("latin1"): text.decode("latin1") for name, text in scope["headers"]}
        try:
            read: Any = json.loads(body) if body else None
        except ValueError:
            read = None
        row = {"agent": self.agent, "run": self.run, "method": scope["method"], "headers": headers}
        path, query = "/" + scope["path"].split("/", 3)[-1], scope["query_string"].decode("latin1")
        return row_from_json({**row, "path": path, "query": query, "body": read}, self.agent)

    async def _call(self, asked: Asked, scope: Message, body: bytes, send: Send) -> None:
        if asked.row.dialect is None:
            await self._forward(asked, scope, body, send)
            return
        async with self._turn:
            before, number = len(self.engine.requests), self.calls
            self.calls += 1
            cut = self.cuts.get(number)
            work = asyncio.create_task(self._forward(asked, scope, body, send, cut))
            try:
                while not work.done() and self._answered(before) is None:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(_POLL_S)
            except asyncio.CancelledError:
                asked.sampled = self._answered(before)
                work.cancel()
                raise
            asked.sampled = self._answered(before)
        try:
            await work
        except asyncio.CancelledError:
            work.cancel()
            raise

    def _answered(self, before: int) -> Sampled | None:
        return next((call for call in reversed(self.engine.requests[before:]) if call.fault is None), None)

    async def _forward(
        self, asked: Asked, scope: Message, body: bytes, send: Send, cut: int | None = None
    ) -> None:
        query = scope["query_string"].decode("latin1")
        url = scope["path"] + (f"?{query}" if query else "")
        headers = [(name, text) for name, text in scope["headers"] if name.decode("latin1") not in _OWN]
        async with self.http.stream(scope["method"], url, content=body, headers=headers) as reply:
            asked.status = reply.status_code
            told = [(n.lower(), t) for n, t in reply.headers.raw if n.lower().decode("latin1") not in _OWN]
            await send({"type": "http.response.start", "status": reply.status_code, "headers": told})
            if cut is not None and reply.status_code == 200:
                whole = await reply.aread()
                events = whole.split(_EVENT)[:-1]
                asked.reply, asked.cut = b"".join(event + _EVENT for event in events[:cut]), True
                await send({"type": "http.response.body", "body": asked.reply, "more_body": True})
                await asyncio.sleep(_READ_S)
                return
            async for chunk in reply.aiter_raw():
                asked.reply += chunk
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _whole(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """A request without the answers that say nothing before the ones that came of asking again: what broken
    streams left."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return body
    following = [*messages[1:], {}]
    kept = [one for one, later in zip(messages, following, strict=True) if not _left_over(one, later)]
    return {**body, "messages": kept}


def _left_over(message: Mapping[str, Any], later: Mapping[str, Any]) -> bool:
    said = message.get("content") or message.get("tool_calls")
    return not said and message.get("role") == later.get("role") == "assistant"


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
