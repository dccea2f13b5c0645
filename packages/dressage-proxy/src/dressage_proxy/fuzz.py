"""Sends mutated requests of every dialect to a proxy in this process and counts what came back.

``python -m dressage_proxy.fuzz --requests 100000``; exits 1 on an answer of 5xx, a request that hangs, or
anything that is left in flight afterwards. The engine is the scripted one, over a real socket.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import MutableMapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dressage_segments import FailureClass, SessionInfo, audit
from dressage_store import FilesStore
from dressage_tito import ChatCodec
from dressage_tito.toy import write_toy_tokenizer

from dressage_proxy.app import Proxy, running
from dressage_proxy.config import Limits, ProxyConfig, Sampling
from dressage_proxy.dataplane import DataPlane
from dressage_proxy.engine.scripted import Output, ScriptedEngine, serve_scripted
from dressage_proxy.replay.synthetic import synthetic_rows
from dressage_proxy.replay.traffic import Row
from dressage_proxy.replay.wire import read_reply

_HANG_S = 30.0
_SESSION_REQUESTS = 64
_LEAVES = 0.03
_DEEP, _DEEPLY = "@deep@", b"[" * 900 + b"]" * 900
_TEXTS = ("done", "<think>\nhm\n</think>\n\nyes é😀", "<think>\nonly", "",
          'go\n<tool_call>\n{"name": "shell", "arguments": {"command": "ls"}}\n</tool_call>',
          "<tool_call>\n{broken", "<|im_start|>user\nhi")  # fmt: skip
_STRANGE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 1 << 62, 1e300, 0.5, "", "x", "é😀\u0000", "cut \ud83d", "<|im_end|>",
    "assistant", "tool", "system", [], {}, [[]], [None], {"type": "text"}, {"type": "image"}, {"text": 5},
    ["a", {"b": []}],
)  # fmt: skip


@dataclass(slots=True)
class Tally:
    """What a run of the fuzzer saw."""

    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    left: int = 0
    seconds: float = 0.0

    @property
    def requests(self) -> int:
        """All that were sent."""
        return sum(self.statuses.values()) + self.left


@dataclass(slots=True)
class Fuzzer:
    """Mutates and sends; everything it does follows from the seed, but for what runs side by side."""

    proxy: Proxy
    plane: DataPlane
    rows: Sequence[Row]
    random: random.Random
    tally: Tally = field(default_factory=Tally)

    async def run(self, count: int, lanes: int) -> Tally:
        """Send about ``count`` requests, ``lanes`` at a time."""
        started = time.perf_counter()
        left = iter(range(0, count, _SESSION_REQUESTS))

        async def lane() -> None:
            for _ in left:
                await self._session(min(count, _SESSION_REQUESTS))

        await asyncio.gather(*(lane() for _ in range(lanes)))
        self._look_for_leaks()
        self.tally.seconds = time.perf_counter() - started
        return self.tally

    async def _session(self, count: int) -> None:
        sessions = self.proxy.sessions
        info = SessionInfo("", "fuzz", "fuzz", "")
        session = sessions.open(info, sampling=Sampling(), limits=Limits(), labels={})
        for _ in range(count):
            await self._request(session.id)
        await sessions.finalize(session.id, {"reward": 1.0}, FailureClass.COMPLETED)
        trajectory = sessions.trajectory(session.id)
        store = self.proxy.store
        if isinstance(store, FilesStore):
            report = audit(store.records(session.id), trajectory)
            self.tally.failures += [f"audit: {finding}" for finding in report.findings]
        sessions.ack(session.id, trajectory.generation)

    async def _request(self, session: str) -> None:
        row = self.random.choice(self.rows)
        body = self._bytes(row)
        path, method = self._target(row)
        exchange = _Exchange(body, leaves=self.random.random() < _LEAVES)
        headers = [(name.encode(), text.encode()) for name, text in row.headers.items()]
        scope = {"type": "http", "method": method, "path": f"/s/{session}{path}", "headers": headers}
        try:
            await asyncio.wait_for(self.plane(scope, exchange.receive, exchange.send), _HANG_S)
        except TimeoutError:
            self._failed("hung", path, body)
            return
        if not exchange.status:
            self.tally.left += 1
            return
        self.tally.statuses[exchange.status] += 1
        if exchange.status >= 500:
            self._failed(f"{exchange.status} {exchange.text[:200]}", path, body)
        elif exchange.status == 200 and path == row.path and method == "POST":
            self._check_reply(row, exchange, body)

    def _check_reply(self, row: Row, exchange: _Exchange, body: bytes) -> None:
        try:
            read_reply(row.path, exchange.text, stream=exchange.streamed)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            self._failed(f"a reply that does not read: {error!r}: {exchange.text[:200]}", row.path, body)

    def _failed(self, what: str, path: str, body: bytes) -> None:
        self.tally.failures.append(f"{what}: POST {path} {body[:2000]!r}")

    def _target(self, row: Row) -> tuple[str, str]:
        draw = self.random.random()
        if draw < 0.04:
            return "/v1/messages/count_tokens", "POST"
        if draw < 0.05:
            return self.random.choice(["/v1/models", "/", "/v1/messages", "/v1/what"]), "GET"
        return (row.path, "POST") if draw < 0.99 else (row.path + "/more", "PUT")

    def _bytes(self, row: Row) -> bytes:
        body = copy.deepcopy(dict(row.body))
        for _ in range(self.random.choice([0, 1, 1, 1, 2, 3, 6])):
            self._mutate(body)
        if self.random.random() < 0.3 and isinstance(body.get("stream"), bool):
            body["stream"] = not body["stream"]
        data = json.dumps(body).encode().replace(f'"{_DEEP}"'.encode(), _DEEPLY)
        if self.random.random() < 0.02:
            cut = self.random.randrange(len(data))
            data = data[:cut] + self.random.choice([b"", b"\xff", b"}", b"\\ud800"]) + data[cut + 1 :]
        return data

    def _mutate(self, body: dict[str, Any]) -> None:
        """Change one place of a body: replace, drop, double, move, rename or nest it."""
        place: Any = body
        for _ in range(self.random.randrange(7)):
            inner = [v for v in (place.values() if isinstance(place, dict) else place) if v and _holds(v)]
            if not inner:
                break
            place = self.random.choice(inner)
        if not place:
            return
        key: Any = self.random.choice(list(place) if isinstance(place, dict) else range(len(place)))
        change = self.random.randrange(8)
        if change == 0:
            del place[key]
        elif change == 1 and isinstance(place, dict):
            place["made_up"] = copy.deepcopy(self.random.choice(_STRANGE))
        elif change == 2 and isinstance(place, list):
            place.insert(self.random.randrange(len(place) + 1), copy.deepcopy(place[key]))
        elif change == 3 and isinstance(place, list):
            self.random.shuffle(place)
        elif change == 4 and isinstance(place[key], str):
            cut = self.random.randrange(len(place[key]) + 1)
            place[key] = place[key][:cut] + self.random.choice(["<think>", "\n\n", "é", ""])
        elif change == 5 and self.random.random() < 0.05:
            place[key] = _DEEP
        else:
            place[key] = copy.deepcopy(self.random.choice(_STRANGE))

    def _look_for_leaks(self) -> None:
        pipeline = self.proxy.pipeline
        left = {
            "replies in the making": len(pipeline.attempts.joinable) + len(pipeline.attempts.running),
            "engine calls": self.proxy.controller.in_flight,
            "turns at the gate": self.proxy.controller.waiting,
            "sessions": len(self.proxy.sessions),
            "bytes of prompts and bodies": self.proxy.pipeline.texts.nbytes
            + self.proxy.pipeline.bodies.nbytes,
        }
        self.tally.failures += [f"leaked: {count} {what}" for what, count in left.items() if count]


def _holds(value: object) -> bool:
    return isinstance(value, dict | list)


class _Exchange:
    """One HTTP exchange as ASGI; a client that leaves is gone as soon as its request was read."""

    def __init__(self, body: bytes, *, leaves: bool) -> None:
        self.status = 0
        self.streamed = False
        self._parts: list[bytes] = []
        self._body: bytes | None = body
        self._leaves = leaves

    @property
    def text(self) -> str:
        """The reply's body."""
        return b"".join(self._parts).decode()

    async def receive(self) -> MutableMapping[str, Any]:
        """ASGI."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body}
        if not self._leaves:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """ASGI."""
        if message["type"] == "http.response.start":
            if self.status:
                raise RuntimeError("a second response was started")
            self.status = message["status"]
            self.streamed = (b"content-type", b"text/event-stream; charset=utf-8") in message["headers"]
        else:
            self._parts.append(message["body"])


async def fuzz(folder: Path, *, requests: int, seed: int, lanes: int = 8) -> Tally:
    """Fuzz a proxy whose store and tokenizer lie in ``folder``."""
    tokenizer = write_toy_tokenizer(folder / "tokenizer")
    codec = ChatCodec.from_folder(tokenizer)
    draw = random.Random(seed)
    outputs = [Output(codec.encode_sample(text + "<|im_end|>")) for text in _TEXTS]
    engine = ScriptedEngine(lambda *_: draw.choice(outputs), keep=False)
    rows = [row for row in synthetic_rows() if row.dialect is not None]
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serve_scripted(engine))
        config = ProxyConfig(
            tokenizer=tokenizer, engines=(url,), store=folder / "store", control_key=secrets.token_hex(16)
        )
        store = stack.enter_context(FilesStore(config.store))
        proxy = await stack.enter_async_context(running(Proxy.build(config, store, codec)))
        return await Fuzzer(proxy, proxy.data_app(), rows, draw).run(requests, lanes)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="dressage_proxy.fuzz", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="dressage-fuzz-") as folder:
        tally = asyncio.run(fuzz(Path(folder), requests=options.requests, seed=options.seed))
    statuses = ", ".join(f"{status}: {count}" for status, count in sorted(tally.statuses.items()))
    print(
        f"{tally.requests} requests in {tally.seconds:.0f} s; {statuses}; {tally.left} left by their client"
    )
    for failure in tally.failures[:20]:
        print(f"FAILED {failure}")
    print(f"{len(tally.failures)} failures")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
