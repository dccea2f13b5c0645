"""A stand-in for an engine's API, for tests where none runs: the subset that the provider speaks.

::

    async with EngineStandIn(BubblewrapProvider(), folder / "engine.sock") as engine:
        provider = ContainerProvider(engine.config())

Containers are sandboxes of another provider, so commands run for real; what the body of a create asks of the
kernel is kept for a test to look at, and not enforced.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import struct
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..errors import SandboxError
from ..protocol import Limits, Sandbox, SandboxProvider, SandboxSpec
from .config import ContainerConfig

__all__ = ["EngineStandIn", "StandInContainer"]

_FRAME = struct.Struct(">B3xL")
_LIMITS = Limits(pids=512, timeout_s=3600.0, disk_bytes=1 << 32, output_bytes=1 << 26)
_REASONS = {101: "UPGRADED", 200: "OK", 201: "Created", 204: "No Content"}


@dataclass
class StandInContainer:
    """A container: its sandbox, and the body of its create."""

    name: str
    body: dict[str, Any]
    box: Sandbox
    execs: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class _Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.body or b"{}")
        return parsed


class EngineStandIn:
    """The engine. ``images`` are those that it has; ``faults`` maps ``METHOD /path`` to a status, once."""

    def __init__(self, machines: SandboxProvider, socket: Path) -> None:
        self._provider = machines
        self.socket = socket
        self.images = {"debian:stable-slim"}
        self.containers: dict[str, StandInContainer] = {}
        self.requests: list[str] = []
        self.faults: dict[str, int] = {}
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    def config(self, **settings: Any) -> ContainerConfig:
        """A configuration that reaches this stand-in."""
        own = {"socket": self.socket, "runtime_dir": self.socket.with_name("notes"), "reaper": False}
        return ContainerConfig(**{**own, **settings})

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._serve, str(self.socket))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._provider.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            while (request := await _read(reader)) is not None:
                if not await self._one(request, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return
        finally:
            self._open.discard(task)
            writer.close()

    async def _one(
        self, request: _Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer a request; whether the connection goes on."""
        path = re.sub(r"^/v1\.\d+", "", request.path)
        told = f"{request.method} {path}"
        self.requests.append(told)
        if (fault := next((f for f in self.faults if told.startswith(f)), None)) is not None:
            _answer(writer, self.faults.pop(fault), {"message": "a fault of the stand-in"})
        elif (found := re.fullmatch(r"/exec/(\w+)/start", path)) is not None:
            await self._start_exec(found[1], request, reader, writer)
            return False
        else:
            status, body = await self._call(request, path)
            _answer(writer, status, body)
        await writer.drain()
        return True

    async def _call(self, request: _Request, path: str) -> tuple[int, object]:
        if path == "/containers/create":
            return await self._create(request)
        if path == "/containers/json":
            (label,) = json.loads(request.query["filters"])["label"]
            return 200, [_listed(c) for c in self.containers.values() if label in _labels(c)]
        found = re.fullmatch(r"/containers/([\w-]+)(?:/(\w+))?", path)
        container = self.containers.get(found[1]) if found else None
        if found is None or container is None:
            return 404, {"message": f"No such container: {path}"}
        if request.method == "DELETE":
            del self.containers[container.name]
            await container.box.terminate()
            return 204, None
        if found[2] == "exec":
            number = secrets.token_hex(16)
            container.execs[number] = request.json
            return 201, {"Id": number}
        return (200, {"Id": container.name}) if found[2] == "json" else (204, None)

    async def _create(self, request: _Request) -> tuple[int, object]:
        body, name = request.json, request.query["name"]
        if body["Image"] not in self.images:
            return 404, {"message": f"No such image: {body['Image']}"}
        spec = SandboxSpec(workdir=body["WorkingDir"], limits=_LIMITS)
        self.containers[name] = StandInContainer(name, body, await self._provider.create(spec))
        return 201, {"Id": name, "Warnings": []}

    async def _start_exec(
        self, number: str, request: _Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        container = next((c for c in self.containers.values() if number in c.execs), None)
        if container is None:
            _answer(writer, 404, {"message": "No such exec instance"})
            await writer.drain()
            return
        asked = container.execs.pop(number)
        upgraded = request.headers.get("upgrade") == "tcp"
        head = "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
        plain = "HTTP/1.1 200 OK\r\nConnection: close\r\n"
        told = f"{head if upgraded else plain}Content-Type: application/vnd.docker.raw-stream\r\n\r\n"
        writer.write(told.encode())
        # The last argument of a command with input is its length: that much is read, as a real one would.
        stdin = await reader.readexactly(int(asked["Cmd"][-1])) if asked["AttachStdin"] else b""
        try:
            result = await container.box.run(asked["Cmd"], stdin=stdin)
        except SandboxError:
            return  # the container was removed: the stream ends
        for kind, data in ((1, result.stdout), (2, result.stderr)):
            if data:
                writer.write(_FRAME.pack(kind, len(data)) + data)
        await writer.drain()


def _labels(container: StandInContainer) -> set[str]:
    return {f"{key}={value}" for key, value in container.body["Labels"].items()}


def _listed(container: StandInContainer) -> dict[str, Any]:
    return {"Id": container.name, "Names": [f"/{container.name}"], "Labels": container.body["Labels"]}


def _answer(writer: asyncio.StreamWriter, status: int, body: object) -> None:
    content = b"" if body is None else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} {_REASONS.get(status, 'Error')}\r\nContent-Length: {len(content)}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + content)


async def _read(reader: asyncio.StreamReader) -> _Request | None:
    """The next request; None where the caller has closed."""
    line = await reader.readline()
    if not line.strip():
        return None
    method, target, _ = line.decode("latin-1").split()
    headers = {}
    while (line := await reader.readline()).strip():
        key, _, value = line.decode("latin-1").partition(":")
        headers[key.strip().lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    path, _, query = target.partition("?")
    return _Request(method, path, dict(urllib.parse.parse_qsl(query)), headers, body)
