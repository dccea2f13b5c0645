"""The one control plane over all shards: each request goes to the shard that it is about, or to all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import aiohttp
import orjson
from pydantic import BaseModel, ValidationError

from dressage_proxy.asgi import Receive, Scope, Send
from dressage_proxy.control_bodies import PauseBody, ResumeBody, merged_ready
from dressage_proxy.errors import ConflictError
from dressage_proxy.gate import GateFile, GateState, to_json
from dressage_proxy.session_ids import session_in, shard_of
from dressage_proxy.shards.exposition import merged
from dressage_proxy.shards.forward import Answer, Peer, refuse

_PROBES = ("/health", "/ready")
_PROBE_PATIENCE_S = 2.0
"""How long a shard that restarts is waited for by those who ask with little patience: probes, scrapers."""
_PROBE_ANSWER_S = 4.0
"""What a shard may take to answer them: one that hangs is as one that is away."""
_ANSWER_S = 30.0
"""… and to answer others, beyond the time that they allow."""
log = logging.getLogger("dressage.proxy")
_M = TypeVar("_M", bound=BaseModel)
_Handler = Callable[[Scope, bytes, Send], Awaitable[None]]


class Front:
    """An ASGI application. It remembers what was asked of all, for a shard that starts again."""

    def __init__(self, peers: Sequence[Peer], file: GateFile, up: Callable[[int], bool]) -> None:
        """What all were told is kept in ``file``; ``up`` tells which shard takes requests now. Raises
        ConfigError where the file cannot be read."""
        self._peers = peers
        self._up = up
        self._turn = 0
        self._file = file
        self._told = file.read()
        self.draining = False
        """All shards are being stopped."""
        self._all: Mapping[tuple[str, str], _Handler] = {
            ("POST", "/rollout/pause"): self._pause,
            ("POST", "/rollout/resume"): self._resume,
            ("GET", "/rollout"): self._rollout,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/ready"): self._ready,
            ("GET", "/health"): self._health,
        }

    @property
    def state(self) -> str:
        """What all shards were told, as JSON. A shard that starts is told it before it takes a request, so
        that it does not sample while the others are paused."""
        return to_json(self._told)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            return
        probe = scope["method"] == "HEAD" and scope["path"] in _PROBES
        method = "GET" if probe else scope["method"]
        handler = self._all.get((method, scope["path"]))
        if handler is not None:
            body = await _whole(receive)
            if body is not None:
                await handler({**scope, "method": method}, body, send)  # the server leaves a HEAD's body out
            return
        session = session_in(scope["path"])
        shard = self._next_up() if session is None else shard_of(session, len(self._peers))
        await self._peers[shard].forward(scope, receive, send)

    def _next_up(self) -> int:
        """Where the next session is opened: in turn, past shards that restart."""
        count = len(self._peers)
        places = [(self._turn + step) % count for step in range(count)]
        place = next((place for place in places if self._up(place)), places[0])
        self._turn = (place + 1) % count
        return place

    async def _every(self, scope: Scope, body: bytes, send: Send) -> list[dict[str, Any]] | None:
        """Every shard's answer; None where one refused or did not answer, which is passed on."""
        return await self._told_by_all(scope, send, await self._answers(scope, body, _ANSWER_S))

    async def _told_by_all(
        self, scope: Scope, send: Send, answers: Sequence[Answer | None]
    ) -> list[dict[str, Any]] | None:
        for answer in answers:
            if answer is None:
                await refuse(scope, send, 503, "shard_unavailable", "a shard restarts: ask again")
                return None
            if answer.status != 200:
                await _send(send, answer.status, answer.body, answer.headers)
                return None
        return [orjson.loads(answer.body) for answer in answers if answer is not None]

    async def _answers(
        self,
        scope: Scope,
        body: bytes,
        within_s: float,
        patience_s: float | None = None,
        absent: Answer | None = None,
    ) -> list[Answer | None]:
        """Every shard's answer; None for one that is away or does not answer in time. Where ``absent`` is
        given, that is the answer of one that is away, and it is not waited for."""
        names = {b"authorization", b"content-type"}
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name in names
        }

        async def ask(shard: int) -> Answer | None:
            away = absent is not None and not self._up(shard)
            patience = 0.0 if away else patience_s
            try:
                async with asyncio.timeout(within_s):
                    peer = self._peers[shard]
                    return await peer.ask(scope["method"], scope["path"], body, headers, patience)
            except (aiohttp.ClientError, OSError):  # a TimeoutError is one
                return absent if away or not self._up(shard) else None

        return list(await asyncio.gather(*map(ask, range(len(self._peers)))))

    async def _pause(self, scope: Scope, body: bytes, send: Send) -> None:
        session = _field(body, "session_id")
        if isinstance(session, str):
            peer = self._peers[shard_of(session, len(self._peers))]
            await peer.forward(scope, _replay(body), send)
            return
        asked = _read(PauseBody, body)
        state = self._told if asked is None else self._told.closed(None)  # else all will refuse it
        waits_s = 0.0 if asked is None else asked.timeout_s
        answers = await self._tell(scope, body, send, state, waits_s, understood=asked is not None)
        if answers is None:
            return
        reply = {
            "quiesced": all(answer["quiesced"] for answer in answers),
            **{name: sum(answer[name] for answer in answers) for name in ("preempted", "waiting")},
        }
        spared = sum(answer.get("spared", 0) for answer in answers)
        if spared:
            reply["spared"] = spared
        await _send(send, 200, orjson.dumps(reply))

    async def _resume(self, scope: Scope, body: bytes, send: Send) -> None:
        asked = _read(ResumeBody, body)
        try:
            state = self._told if asked is None else self._told.opened(asked.version)
        except ConflictError as error:
            told = {"code": error.code, "message": error.message, "field": error.field, "fix": error.fix}
            await _send(send, error.status, orjson.dumps({"error": told}))
            return
        answers = await self._tell(scope, body, send, state, understood=asked is not None)
        if answers is not None:
            await _send(send, 200, orjson.dumps(_sum(answers)))

    async def _tell(
        self,
        scope: Scope,
        body: bytes,
        send: Send,
        state: GateState,
        waits_s: float = 0.0,
        *,
        understood: bool,
    ) -> list[dict[str, Any]] | None:
        """Tell all shards what changes the gate's state; their answers, or None where one gave none or
        refused it, which is passed on. It is kept before it is said, and stays where a shard is away or
        fails: who starts is told so then, before it takes a request, so that one that is away has nothing
        in flight and is not waited for. Where all refuse it, it is as it was."""
        before = self._told
        try:
            self._keep(state)
        except OSError as error:
            log.error("the store failed: %s", error)  # noqa: TRY400
            await refuse(scope, send, 503, "store_failed", "what is paused cannot be noted: the store failed")
            return None
        absent = _at_its_start(state) if understood else None  # else all refuse it, in their own words
        answers = await self._answers(scope, body, _ANSWER_S + waits_s, absent=absent)
        if self._told is not state:
            await self._remind(scope, state)
        elif any(answer is not None and 400 <= answer.status < 500 for answer in answers):
            self._keep(before)
        return await self._told_by_all(scope, send, answers)

    async def _remind(self, scope: Scope, said: GateState) -> None:
        """Something else was asked while all were told what was ``said`` last: which of the two came last to
        a shard is not known, so that it is said again, until nothing else is asked meanwhile."""
        while self._told is not said:
            said = self._told
            if said.paused:
                path, body = "/rollout/pause", orjson.dumps({"timeout_s": 0.0})
            elif said.version >= 0:
                path, body = "/rollout/resume", orjson.dumps({"version": said.version})
            else:
                return
            again = {**scope, "method": "POST", "path": path}
            await self._answers(again, body, _ANSWER_S, absent=_at_its_start(said))

    def _keep(self, state: GateState) -> None:
        if state != self._told:
            self._file.write(state)
        self._told = state

    async def _rollout(self, scope: Scope, body: bytes, send: Send) -> None:
        answers = await self._every(scope, body, send)
        if answers is not None:
            await _send(send, 200, orjson.dumps(_sum(answers)))

    async def _ready(self, scope: Scope, body: bytes, send: Send) -> None:
        answers = await self._answers(scope, body, _PROBE_ANSWER_S, _PROBE_PATIENCE_S)
        states = (orjson.loads(answer.body) if answer is not None else None for answer in answers)
        reply = merged_ready(states, draining=self.draining)
        await _send(send, 200 if reply["ready"] else 503, orjson.dumps(reply))

    async def _health(self, scope: Scope, body: bytes, send: Send) -> None:
        """This process answers: a shard that starts again is no reason to end all."""
        await _send(send, 200, b'{"status":"ok"}')

    async def _metrics(self, scope: Scope, body: bytes, send: Send) -> None:
        answers = await self._answers(scope, body, _PROBE_ANSWER_S, _PROBE_PATIENCE_S)
        refused = next((answer for answer in answers if answer is not None and answer.status != 200), None)
        if refused is not None:
            await _send(send, refused.status, refused.body, refused.headers)
            return
        texts = {
            str(shard): answer.body.decode() for shard, answer in enumerate(answers) if answer is not None
        }
        await _send(send, 200, merged(texts), {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


def _at_its_start(state: GateState) -> Answer:
    """What a shard would say of a pause or resume that is told this state when it starts."""
    said = {
        **{"quiesced": True, "preempted": 0, "waiting": 0, "in_flight": 0},
        "state": "paused" if state.paused else "running",
        "version": state.version if state.version >= 0 else None,
    }
    return Answer(200, {}, orjson.dumps(said))


def _sum(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    paused = all(answer["state"] == "paused" for answer in answers)
    versions = {answer["version"] for answer in answers}
    alone = sum(answer.get("paused_sessions", 0) for answer in answers)
    return {
        "state": "paused" if paused else "running",
        "version": answers[0]["version"] if len(versions) == 1 else None,
        "in_flight": sum(answer["in_flight"] for answer in answers),
        "waiting": sum(answer["waiting"] for answer in answers),
        **({"paused_sessions": alone} if alone else {}),
    }


def _read(model: type[_M], body: bytes) -> _M | None:
    """What a body asks; None for one that every shard refuses in its own words."""
    try:
        return model.model_validate_json(body)
    except ValidationError:
        return None


def _field(body: bytes, name: str) -> object:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None  # every shard refuses it in its own words
    return value.get(name) if isinstance(value, dict) else None


def _replay(body: bytes) -> Receive:
    sent = False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            await asyncio.Event().wait()  # there is no more, and who waits here is cancelled
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


async def _whole(receive: Receive) -> bytes | None:
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _send(send: Send, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
    given = {name.lower(): value for name, value in (headers or {}).items()}
    kept = {"content-type": "application/json"} | {
        name: given[name] for name in ("content-type", "retry-after") if name in given
    }
    lines = [(name.encode(), value.encode("latin-1")) for name, value in kept.items()]
    lines.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})
