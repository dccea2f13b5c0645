"""Putting the parts together into ASGI apps."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dressage_store import FilesStore, StoreError
from dressage_tito import ChatCodec, Message
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from dressage_proxy.asgi import Receive, Scope, Send, retry_after
from dressage_proxy.committing import Committer
from dressage_proxy.config import ProxyConfig
from dressage_proxy.control import control_router, health_router
from dressage_proxy.controller import Controller
from dressage_proxy.dataplane import DataPlane
from dressage_proxy.engine.pool import EnginePool
from dressage_proxy.errors import RequestError, UnauthorizedError
from dressage_proxy.gate import GATE_FILE, GateFile, GateState
from dressage_proxy.generation import Generator
from dressage_proxy.guard import CHALLENGE, Guard
from dressage_proxy.hooks import Hooks, ToolHook
from dressage_proxy.metrics import Metrics
from dressage_proxy.pipeline import Pipeline
from dressage_proxy.sessions import Sessions
from dressage_proxy.store import Store

_EXPIRE_EVERY_S = 5.0
_ROOM_BYTES = 1 << 20
_FOREIGN = "HTTPValidationError"
_METHODS = ("DELETE", "GET", "HEAD", "POST")
log = logging.getLogger("dressage.proxy")


@dataclass(frozen=True, slots=True)
class Proxy:
    """One proxy in one event loop. ``start`` before the first request, ``close`` after the last."""

    config: ProxyConfig
    store: Store
    engines: EnginePool
    controller: Controller
    pipeline: Pipeline
    sessions: Sessions
    metrics: Metrics

    @classmethod
    def build(
        cls, config: ProxyConfig, store: Store, codec: ChatCodec, hooks: Iterable[ToolHook] = ()
    ) -> Proxy:
        """Wire the parts; nothing is opened yet."""
        metrics = Metrics()
        engines = EnginePool(config.pool())
        metrics.unversioned.set_function(lambda: len(engines.warnings))
        # What is kept in memory alone has no pause to come back to.
        file = GateFile(store.root / GATE_FILE, fsync=config.fsync) if isinstance(store, FilesStore) else None
        controller = Controller(engines, file)
        metrics.paused.set_function(lambda: controller.state.paused)
        metrics.waiting.set_function(lambda: controller.waiting)
        generator = Generator(
            engines,
            controller,
            codec.stop_token_ids,
            codec.decode,
            config.engine_attempts,
            config.routed_experts,
            codec.vocab_size,
        )
        committer = Committer(codec, store, metrics)
        pipeline = Pipeline(config, codec, committer, generator, metrics, Hooks(hooks))
        sessions = Sessions(config, store, pipeline, controller, metrics)
        return cls(config, store, engines, controller, pipeline, sessions, metrics)

    async def start(self, whole: Callable[[], GateState] | None = None) -> None:
        """Open the engine pools and resume what the store has; what was paused still is. ``whole`` says what
        all processes were told of which this is one; it is asked last, since what comes before takes long.
        Raises ConfigError where that cannot be read."""
        # What a codec finds out about its tokenizer at its first text takes a good part of a second.
        self.pipeline.codec.start([Message("user", "hello")])
        await self.engines.start()
        resumed = self.sessions.recover()
        self.controller.recover(self.sessions, None if whole is None else whole())
        if self.controller.state.paused:
            log.warning("paused, as it was before: model calls wait for POST /rollout/resume")
        if resumed:
            log.info("resumed %d sessions", resumed)

    async def drain(self, at_once: asyncio.Event | None = None) -> None:
        """Take nothing new and let replies in the making end, for as long as the configuration allows, or
        until ``at_once`` is set."""
        patient = asyncio.create_task(self.pipeline.drain(self.config.drain_s))
        hurried = asyncio.create_task((at_once or asyncio.Event()).wait())
        try:
            await asyncio.wait({patient, hurried}, return_when=asyncio.FIRST_COMPLETED)
            aborted = patient.result() if patient.done() else await self._drain_now(patient)
        finally:
            hurried.cancel()
            patient.cancel()
        if aborted:
            log.warning("%d replies were still in the making at the end: they were aborted", aborted)

    async def _drain_now(self, patient: asyncio.Task[int]) -> int:
        patient.cancel()
        await asyncio.gather(patient, return_exceptions=True)
        return await self.pipeline.drain(0)

    async def close(self) -> None:
        """Close the engine pools; the store is its owner's."""
        await self.engines.close()

    def data_app(self) -> DataPlane:
        """The data plane alone: ``/s/{session}/…``."""
        return DataPlane(self.config, self.sessions, self.pipeline, self.metrics)

    def control_app(self, base_url: str) -> FastAPI:
        """The control plane alone; ``base_url`` is the data plane's address, given out by ``open``."""
        app = _ControlApp(
            title="dressage-proxy control plane", docs_url=None, redoc_url=None, redirect_slashes=False
        )
        app.add_middleware(Guard, key=self.config.control_key, max_body_bytes=self.config.max_body_bytes)
        app.include_router(
            control_router(self.config, self.sessions, self.pipeline, self.controller, self.metrics, base_url)
        )
        app.include_router(
            health_router(self.config, lambda: _writable(self.config.store), self.engines, self.pipeline)
        )
        app.add_exception_handler(RequestError, _refused)
        app.add_exception_handler(RequestValidationError, _invalid)
        app.add_exception_handler(HTTPException, _plain)
        app.add_exception_handler(OSError, _store_failed)
        app.add_exception_handler(StoreError, _store_failed)
        app.add_exception_handler(Exception, _failed)
        return app

    def app(self, base_url: str) -> CombinedApp:
        """Both planes on one address."""
        return CombinedApp(self.data_app(), self.control_app(base_url))


class _ControlApp(FastAPI):
    """Its description names the refusals that there are, and not those that FastAPI would make."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI description."""
        if self.openapi_schema is None:
            described = super().openapi()
            for operation in (each for path in described["paths"].values() for each in path.values()):
                if _FOREIGN in json.dumps(operation["responses"].get("422", {})):
                    del operation["responses"]["422"]
            for name in (_FOREIGN, "ValidationError"):
                described["components"]["schemas"].pop(name, None)
        return super().openapi()


class CombinedApp:
    """Sends ``/s/…`` to the data plane, everything else to the control plane."""

    def __init__(self, data: DataPlane, control: FastAPI | None) -> None:
        self._data = data
        self._control = control

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http" and (self._control is None or scope["path"].startswith("/s/")):
            await self._data(scope, receive, send)
        elif self._control is not None:
            await self._control(scope, receive, send)


@asynccontextmanager
async def running(proxy: Proxy, whole: Callable[[], GateState] | None = None) -> AsyncIterator[Proxy]:
    """Start a proxy and close it after. ``whole``: see :meth:`Proxy.start`."""
    await proxy.start(whole)
    expiring = asyncio.create_task(_expire(proxy))
    try:
        yield proxy
    finally:
        expiring.cancel()
        await asyncio.gather(expiring, return_exceptions=True)
        await proxy.close()


async def _expire(proxy: Proxy) -> None:
    """Look for idle sessions now and then."""
    interval = min(_EXPIRE_EVERY_S, (proxy.config.idle_timeout_s or _EXPIRE_EVERY_S) / 4)
    while True:
        await asyncio.sleep(interval)
        await proxy.sessions.expire()


def _writable(store: Path) -> bool:
    """Whether a turn can be stored: the folder is there and ours to write, and the disk is not full."""
    try:
        disk = os.statvfs(store)
    except OSError:
        return False
    room = disk.f_bavail * disk.f_frsize >= _ROOM_BYTES and (disk.f_favail > 0 or not disk.f_files)
    return room and os.access(store, os.W_OK)


def _error(code: str, message: str, field: str | None, fix: str | None) -> dict[str, object]:
    error = {"code": code, "message": message}
    if field:
        error["field"] = field
    if fix:
        error["fix"] = fix
    return {"error": error}


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestError)
    headers = dict(CHALLENGE) if isinstance(error, UnauthorizedError) else {}
    headers |= {name.decode(): value.decode() for name, value in retry_after(error)}
    body = _error(error.code, error.message, error.field, error.fix)
    return JSONResponse(body, error.status, headers)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return JSONResponse(_error("invalid_json", "the body is no JSON", "body", "send JSON"), 400)
    field = ".".join(str(part) for part in first["loc"] if part != "body")
    fix = "leave it out" if first["type"] == "extra_forbidden" else "see the control plane's OpenAPI schema"
    if not field and "json" not in request.headers.get("content-type", ""):
        fix = "send it with Content-Type: application/json"
    code = "unknown_field" if first["type"] == "extra_forbidden" else "invalid_field"
    return JSONResponse(_error(code, f"{field or 'body'}: {first['msg']}", field or "body", fix), 422)


async def _plain(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    code = {404: "unknown_route", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    headers = {"Allow": _allowed(request)} if error.status_code == 405 else None  # RFC 9110, 15.5.6
    return JSONResponse(_error(code, message, None, None), error.status_code, headers)


def _allowed(request: Request) -> str:
    """The methods of a path, over all its routes."""
    full = [
        method
        for method in _METHODS
        if any(r.matches({**request.scope, "method": method})[0] is Match.FULL for r in request.app.routes)
    ]
    return ", ".join(full)


async def _failed(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse(_error("internal_error", "the proxy failed, see its log", None, None), 500)


async def _store_failed(request: Request, error: Exception) -> JSONResponse:
    log.error("the store failed: %s", error)
    body = _error("store_failed", str(error), None, "free space or repair the store, then try again")
    return JSONResponse(body, 503, {"Retry-After": "5"})
