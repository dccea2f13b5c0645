"""The worker list of a sglang-router without the router: the test double of engine discovery."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson

from dressage_proxy.engine.scripted_http import (
    Message,
    Receive,
    Send,
    read_body,
    send_error,
    send_reply,
    serving,
)


class ScriptedRouter:
    """An ASGI application that answers ``GET``, ``POST`` and ``DELETE /workers`` as sglang-router 0.3 does.

    ``workers`` are its worker objects by id, to be changed between calls; with ``failing`` it answers 503.
    """

    def __init__(self, *urls: str) -> None:
        self.workers: dict[str, dict[str, Any]] = {}
        self.failing = False
        self.asked = 0
        """How often the list was asked for."""
        for url in urls:
            self.add(url)

    def add(self, url: str, **fields: Any) -> str:
        """A further worker; its id. ``fields`` override what a healthy regular worker says."""
        worker_id = str(uuid.uuid4())
        worker = {
            "id": worker_id,
            "url": url,
            "model_id": "unknown",
            "worker_type": "regular",
            "is_healthy": True,
        }
        self.workers[worker_id] = {**worker, "load": 0, "connection_mode": "HTTP", **fields}
        return worker_id

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """ASGI."""
        body = await read_body(receive)
        if body is None:
            return
        method, path = scope["method"], scope["path"]
        if self.failing:
            await send_error(send, 503, "scripted failure")
        elif (method, path) == ("GET", "/workers"):
            self.asked += 1
            workers = list(self.workers.values())
            await send_reply(
                send, 200, orjson.dumps({"workers": workers, "total": len(workers), "stats": {}})
            )
        elif (method, path) == ("POST", "/workers"):
            worker_id = self.add(orjson.loads(body)["url"])
            await send_reply(send, 202, orjson.dumps({"status": "accepted", "worker_id": worker_id}))
        elif method == "DELETE" and path.removeprefix("/workers/") in self.workers:
            del self.workers[path.removeprefix("/workers/")]
            await send_reply(send, 202, orjson.dumps({"status": "accepted"}))
        else:
            await send_error(send, 404, f"no such route: {method} {path}")


@asynccontextmanager
async def serve_scripted_router(router: ScriptedRouter, *, port: int = 0) -> AsyncIterator[str]:
    """Serve a router on the loopback of this process; yields its base URL."""
    async with serving(router, port) as url:
        yield url
