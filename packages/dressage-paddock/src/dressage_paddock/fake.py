"""A scripted gateway, for tests of whatever uses a paddock: no proxy, no engine, no socket."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from dressage_paddock.gateway import GatewaySession
from dressage_paddock.messages import JsonObject
from dressage_paddock.result import FinalizeInfo

Script = Callable[[Sequence[JsonObject]], JsonObject]
"""From a request's messages to an assistant message in wire form; ``finish_reason`` in it is taken out."""


def say(text: str, *, finish_reason: str = "stop") -> JsonObject:
    """A reply of plain text."""
    return {"role": "assistant", "content": text, "finish_reason": finish_reason}


def call(name: str, /, *, says: str = "", **arguments: Any) -> JsonObject:
    """A reply that says ``says`` and calls one tool with ``arguments``."""
    made = {
        "id": f"call{uuid.uuid4().hex[:12]}",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }
    return {"role": "assistant", "content": says, "tool_calls": [made], "finish_reason": "tool_calls"}


@dataclass
class FakeSession:
    """A session as the fake gateway keeps it. ``state`` is open, finalized or deleted."""

    session_id: str
    opened: Mapping[str, Any]
    state: str = "open"
    outcome: Mapping[str, Any] | None = None
    failure_class: str | None = None
    requests: list[JsonObject] = field(default_factory=list)
    faults: int = 0
    """Calls that failed (429, 5xx) since one was last answered."""


class ScriptedGateway:
    """A ``ModelGateway`` that answers from a script, and an ``httpx`` client that reaches it.

    ``script`` is a list of wire messages (reply n of a session is the n-th; the last one repeats) or a
    function of the request's messages. ``faults`` maps an operation (open, finalize, delete, complete) to an
    exception that it raises.
    """

    def __init__(self, script: Sequence[JsonObject] | Script) -> None:
        self._script = script
        self.sessions: dict[str, FakeSession] = {}
        self.faults: dict[str, Exception] = {}

    @property
    def open_sessions(self) -> list[str]:
        """Sessions that were neither finalised nor deleted."""
        return [s.session_id for s in self.sessions.values() if s.state == "open"]

    def client(self) -> httpx.AsyncClient:
        """A client whose requests end here."""
        return httpx.AsyncClient(transport=httpx.MockTransport(self._complete))

    async def open(
        self,
        *,
        instance_id: str,
        group_id: str | None = None,
        rollout_id: str | None = None,
        sampling: Mapping[str, Any] | None = None,
        limits: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> GatewaySession:
        """Open a session."""
        await self._step("open")
        sid = uuid.uuid4().hex
        opened = {"instance_id": instance_id, "group_id": group_id, "rollout_id": rollout_id,
                  "sampling": sampling, "limits": limits, "labels": labels}  # fmt: skip
        self.sessions[sid] = FakeSession(sid, opened)
        await asyncio.sleep(0)  # the reply is on its way: a cancel here must not lose the session
        base = f"http://127.0.0.1:9/s/{sid}"
        return GatewaySession(sid, f"{base}/v1", base)

    async def finalize(
        self, session_id: str, *, outcome: Mapping[str, Any] | None = None, failure_class: str | None = None
    ) -> FinalizeInfo:
        """End a session; idempotent."""
        await self._step("finalize")
        session = self.sessions[session_id]
        session.state, session.outcome, session.failure_class = "finalized", outcome, failure_class
        await asyncio.sleep(0)
        return FinalizeInfo(segments=1 if session.requests else 0, trained_tokens=0, lost_tokens={})

    async def get(self, session_id: str) -> Mapping[str, Any]:
        """A session's state, steps, and the model calls that failed since one was last answered."""
        await self._step("get")
        session = self.sessions[session_id]
        return {"state": session.state, "steps": len(session.requests), "faults": session.faults}

    async def delete(self, session_id: str) -> None:
        """Drop a session; idempotent."""
        await self._step("delete")
        self.sessions[session_id].state = "deleted"

    async def _step(self, operation: str) -> None:
        await asyncio.sleep(0)
        if operation in self.faults:
            raise self.faults[operation]

    async def _complete(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0)
        if "complete" in self.faults:
            raise self.faults["complete"]
        session = self.sessions.get(request.url.path.split("/")[2])
        if session is None or session.state != "open":
            code = 404 if session is None else 410
            return httpx.Response(code, json={"error": {"code": "no_session", "message": "no open session"}})
        body = json.loads(request.content)
        session.requests.append(body)
        if callable(self._script):
            message = dict(self._script(body["messages"]))
        else:
            message = dict(self._script[min(len(session.requests), len(self._script)) - 1])
        if "error" in message:
            status = int(message.pop("status", 400))
            session.faults += status == 429 or status >= 500
            return httpx.Response(status, json=message)
        session.faults = 0
        reason = message.pop("finish_reason", "stop")
        return httpx.Response(
            200, json={"choices": [{"index": 0, "message": message, "finish_reason": reason}]}
        )
