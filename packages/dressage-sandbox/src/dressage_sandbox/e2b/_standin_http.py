"""The stand-in's HTTP side: control API, files, ports, and the process service as the SDK defines it."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import re
import socket
import time
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from e2b.envd.process import process_connect
from e2b.envd.process.process_pb import (
    ListRequest,
    ListResponse,
    ProcessEvent,
    SendSignalRequest,
    SendSignalResponse,
    Signal,
    StartRequest,
    StartResponse,
)

from ..errors import SandboxError
from ._standin_account import Account, Fault, Machine

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_ENVD_PORT = "49983"
_GONE = {"message": "The sandbox was not found", "code": 502}
_LEADER = 'echo $$ >"$1"; shift; exec "$@"'


class Envd(process_connect.Process):
    """The process service of one machine."""

    def __init__(self, cloud: Account, machine: Machine) -> None:
        self._cloud = cloud
        self._machine = machine

    async def list(self, request: ListRequest, ctx: Any, /) -> ListResponse:
        """None: the stand-in keeps no table."""
        return ListResponse()

    async def start(self, request: StartRequest, ctx: Any, /) -> AsyncIterator[StartResponse]:
        """Run a command and stream its events; its life is not that of the stream, but for the deadline."""
        process, limit_ms = request.process, ctx.timeout_ms
        if process is None:
            return
        events: asyncio.Queue[ProcessEvent] = asyncio.Queue()
        box, note = self._machine.box, f"/tmp/.pid-{id(events)}"
        argv = ["/bin/sh", "-c", _LEADER, "sh", note, process.cmd, *process.args]
        service = await box.start(
            argv,
            env=dict(process.envs),
            cwd=process.cwd or None,
            on_output=lambda stream, data: events.put_nowait(_data(stream, data)),
        )
        pid = await _read_pid(box, note)
        yield StartResponse(event=_event("start", ProcessEvent.StartEvent(pid=int(pid))))
        seconds = None if limit_ms is None else limit_ms / 1000
        ended = asyncio.ensure_future(service.wait())
        async with self._cloud.deadline(self._machine, pid, seconds):
            while not (ended.done() and events.empty()):
                getting = asyncio.ensure_future(events.get())
                await asyncio.wait({ended, getting}, return_when=asyncio.FIRST_COMPLETED)
                if getting.done():
                    yield StartResponse(event=getting.result())
                else:
                    getting.cancel()
        code = ended.result().exit_code
        end = ProcessEvent.EndEvent(exit_code=code, exited=True, status=f"exit status {code}")
        yield StartResponse(event=_event("end", end))

    async def send_signal(self, request: SendSignalRequest, ctx: Any, /) -> SendSignalResponse:
        """Signal a leader, and it alone."""
        number = "9" if request.signal == Signal.SIGKILL else "15"
        selector = request.process.selector if request.process is not None else None
        if selector is not None:
            await self._machine.box.run(["kill", f"-{number}", str(selector.value)])
        return SendSignalResponse()


def _event(name: str, value: Any) -> ProcessEvent:
    # By JSON, since the class of a oneof's parts is a matter of the SDK's own dependencies.
    return ProcessEvent.from_json(json.dumps({name: json.loads(value.to_json())}))


def _data(stream: str, data: bytes) -> ProcessEvent:
    return _event("data", ProcessEvent.DataEvent.from_json(json.dumps({stream: _b64(data)})))


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


async def _read_pid(box: Any, note: str) -> str:
    for _ in range(500):
        try:
            text = (await box.read(note)).decode().strip()
        except FileNotFoundError:
            text = ""
        if text:
            return str(text)
        await asyncio.sleep(0.005)
    raise SandboxError("a command did not start")


class App:
    """The ASGI application."""

    def __init__(self, cloud: Account) -> None:
        self._cloud = cloud
        self._services: dict[str, Any] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        request = f"{scope['method']} {scope['path']}"
        fault = self._cloud.fault_of(request)
        if fault is not None:
            await asyncio.sleep(fault.delay_s)
            if fault.after:
                await self._route(scope, receive, _nowhere, headers)
            await _fail(send, fault)
            return
        await self._route(scope, receive, send, headers)

    async def _route(self, scope: Scope, receive: Receive, send: Send, headers: dict[str, str]) -> None:
        machine_id = headers.get("e2b-sandbox-id")
        if machine_id is None:
            if headers.get("x-api-key") != self._cloud.api_key:
                await _answer(send, 401, {"code": 401, "message": "Invalid API key"})
                return
            await self._control(scope, receive, send, headers)
            return
        machine = self._cloud.machines.get(machine_id)
        if machine is None or machine.state != "running":
            await _answer(send, 502, _GONE)
        elif headers.get("e2b-sandbox-port") != _ENVD_PORT:
            await _forward(scope, send, machine, int(headers["e2b-sandbox-port"]))
        elif headers.get("x-access-token") != machine.token:
            await _answer(send, 401, {"code": 401, "message": "wrong access token"})
        elif scope["path"].startswith("/process.Process/"):
            await self._service(machine)(scope, receive, send)
        else:
            await self._envd_http(scope, receive, send, machine)

    def _service(self, machine: Machine) -> Any:
        if machine.id not in self._services:
            self._services[machine.id] = process_connect.ProcessASGIApplication(Envd(self._cloud, machine))
        return self._services[machine.id]

    async def _control(self, scope: Scope, receive: Receive, send: Send, headers: dict[str, str]) -> None:
        cloud, method, path = self._cloud, scope["method"], scope["path"]
        if (method, path) == ("POST", "/v2/sandboxes"):
            body = json.loads(await _body(receive))
            made = await cloud.make(body, headers.get("idempotency-key"))
            await _answer(send, 201, _created(made))
            return
        if (method, path) == ("GET", "/v2/sandboxes"):
            await _answer(send, 200, [_listed(m) for m in self._matching(scope)])
            return
        found = re.fullmatch(r"(?:/v2)?/sandboxes/(\w+)(?:/(\w+))?", path)
        machine = cloud.machines.get(found[1]) if found else None
        if found is None or machine is None:
            await _answer(send, 404, {"code": 404, "message": f"sandbox of {path} not found"})
        elif method == "DELETE":
            await cloud.end(machine.id)
            await _answer(send, 204, None)
        elif found[2] == "timeout":
            cloud.let_live(machine, float(json.loads(await _body(receive))["timeout"]))
            await _answer(send, 204, None)
        elif found[2] == "pause":
            machine.state = "paused"
            await _answer(send, 204, None)
        elif found[2] == "connect":
            machine.state = "running"
            cloud.let_live(machine, float(json.loads(await _body(receive)).get("timeout", 300)))
            await _answer(send, 200, _created(machine))
        else:
            await _answer(send, 501, {"code": 501, "message": f"the stand-in has no {method} {path}"})

    def _matching(self, scope: Scope) -> list[Machine]:
        query = urllib.parse.parse_qs(scope["query_string"].decode("ascii"))
        wanted = urllib.parse.parse_qs((query.get("metadata") or [""])[0])
        tags = {urllib.parse.unquote(k): urllib.parse.unquote(v[0]) for k, v in wanted.items()}
        return [m for m in self._cloud.machines.values() if tags.items() <= m.metadata.items()]

    async def _envd_http(self, scope: Scope, receive: Receive, send: Send, machine: Machine) -> None:
        query = urllib.parse.parse_qs(scope["query_string"].decode("ascii"))
        if scope["path"] == "/health":
            await _answer(send, 204, None)
        elif (scope["method"], scope["path"]) == ("POST", "/files"):
            path = query["path"][0]
            await machine.box.write(path, await _body(receive))
            await _answer(send, 200, [{"name": path.rpartition("/")[2], "type": "file", "path": path}])
        else:
            await _answer(send, 501, {"message": f"the stand-in has no {scope['method']} {scope['path']}"})


async def _nowhere(message: MutableMapping[str, Any]) -> None:
    """An answer that is lost."""


async def _fail(send: Send, fault: Fault) -> None:
    headers = [(k.lower().encode(), v.encode()) for k, v in fault.headers.items()]
    await _answer(send, fault.status, {"code": fault.status, "message": "a fault of the stand-in"}, headers)


async def _answer(
    send: Send, status: int, body: object, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    content = b"" if body is None else json.dumps(body).encode()
    told = [(b"content-type", b"application/json"), *(headers or [])]
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": content})


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def _forward(scope: Scope, send: Send, machine: Machine, port: int) -> None:
    """A GET to a port of the inside."""
    endpoint = await machine.box.expose(port)

    def fetch() -> tuple[int, bytes]:
        with urllib.request.urlopen(endpoint.url + scope["path"], timeout=10) as reply:
            return reply.status, reply.read()

    try:
        status, content = await asyncio.to_thread(fetch)
    except OSError:
        await _answer(send, 502, {"message": "The sandbox is running but port is not open", "code": 502})
        return
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": content})


def _created(machine: Machine) -> dict[str, Any]:
    return {
        "templateID": machine.asked.get("templateID", "base"),
        "sandboxID": machine.id,
        "clientID": "stand-in",
        "envdVersion": "0.6.8",
        "envdAccessToken": machine.token,
    }


def _listed(machine: Machine) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC)
    ends = now + datetime.timedelta(seconds=max(0.0, machine.ends - time.monotonic()))
    return {
        **_created(machine),
        "startedAt": now.isoformat(),
        "endAt": ends.isoformat(),
        "cpuCount": 2,
        "memoryMB": 512,
        "diskSizeMB": 1024,
        "state": machine.state,
        "metadata": machine.metadata,
    }


@asynccontextmanager
async def serve(cloud: Account) -> AsyncIterator[str]:
    """Serve on this machine's loopback; yields the base URL."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    config = uvicorn.Config(
        App(cloud),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=2,
    )
    config.load()
    # Started and stopped by its two ends rather than by serve(): the host keeps its signals and its loop.
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    try:
        await server.startup(sockets=[listener])
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await server.shutdown(sockets=[listener])
        listener.close()
