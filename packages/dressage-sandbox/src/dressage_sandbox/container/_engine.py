"""The engine's HTTP API, the few calls that are needed of it."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from ..engines import API
from ..errors import ProviderUnavailable, SandboxError, SandboxGone, SandboxStartFailed

__all__ = ["Container", "Engine"]

_FRAME = struct.Struct(">B3xL")
_STDOUT = 1
_REMOVAL_LOOKS = 400
_LOST = "the container is not running"


class Engine:
    """One engine."""

    def __init__(self, socket: Path, timeout_s: float) -> None:
        self.socket = socket
        self._timeout_s = timeout_s
        self._http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(socket), limits=httpx.Limits(max_connections=None)),
            base_url=f"http://engine{API}",
            timeout=httpx.Timeout(timeout_s, pool=None),
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def call(self, method: str, path: str, body: object = None, **query: str) -> httpx.Response:
        """One call; the answer whatever its status.

        Raises:
            ProviderUnavailable: no engine listens there.
            SandboxError: it did not answer.
        """
        try:
            return await self._http.request(method, path, json=body, params=query)
        except httpx.ConnectError as error:
            raise ProviderUnavailable(
                f"no engine answers at {self.socket}: start Docker or Podman, or give its socket in "
                "ContainerConfig.socket"
            ) from error
        except httpx.HTTPError as error:
            told = str(error) or type(error).__name__
            raise SandboxError(f"the engine did not answer {method} {path}: {told}") from error

    async def create(self, name: str, body: Mapping[str, Any]) -> None:
        """Create and start a container of this name.

        Raises:
            ProviderUnavailable: the image is not there.
            SandboxStartFailed: with what the engine said.
        """
        made = await self.call("POST", "/containers/create", body, name=name)
        if made.status_code == 404:
            raise ProviderUnavailable(f"{_said(made)}: pull the image first, or name another one")
        if made.status_code >= 300:
            raise SandboxStartFailed(f"no container could be made: {_said(made)}")
        started = await self.call("POST", f"/containers/{name}/start")
        if started.status_code >= 300 and started.status_code != 304:
            raise SandboxStartFailed(f"a container could not be started: {_said(started)}")

    async def remove(self, name: str) -> None:
        """Kill and remove a container; one that is not there is fine."""
        gone = await self.call("DELETE", f"/containers/{name}", force="true", v="true")
        if gone.status_code >= 300 and gone.status_code not in (404, 409):
            raise SandboxError(f"container {name} could not be removed: {_said(gone)}")
        for _ in range(_REMOVAL_LOOKS):  # 409: a removal is under way
            if (await self.call("GET", f"/containers/{name}/json")).status_code == 404:
                return
            await asyncio.sleep(0.05)
        raise SandboxError(f"container {name} could not be removed: it is still there")

    async def find(self, labels: list[str]) -> list[tuple[str, dict[str, str]]]:
        """Name and labels of every container, running or not, with these labels (``name=value``)."""
        filters = json.dumps({"label": labels})
        answer = await self.call("GET", "/containers/json", all="true", filters=filters)
        if answer.status_code >= 300:
            raise SandboxError(f"the containers could not be listed: {_said(answer)}")
        return [(item["Names"][0].lstrip("/"), dict(item["Labels"])) for item in answer.json()]


class Container:
    """One container. Satisfies ``remote.Transport``."""

    def __init__(self, engine: Engine, name: str, user: str) -> None:
        self._engine = engine
        self.name = name
        self._user = user

    async def _exec(self, argv: list[str], *, stdin: bool) -> str:
        body = {"AttachStdout": True, "AttachStdin": stdin, "Cmd": argv, "User": self._user}
        made = await self._engine.call("POST", f"/containers/{self.name}/exec", body)
        if made.status_code in (404, 409):
            raise SandboxGone(f"{_LOST}: {_said(made)}")
        if made.status_code >= 300:
            raise SandboxError(f"a command could not be started: {_said(made)}")
        return str(made.json()["Id"])

    async def run(self, script: str, *, timeout_s: float | None, as_root: bool = False) -> bytes:
        """See ``remote.Transport``. There is no root inside: ``as_root`` changes nothing."""
        number = await self._exec(["/bin/sh", "-c", script], stdin=False)
        http = self._engine._http
        body = {"Detach": False, "Tty": False}
        parts = []
        try:
            async with asyncio.timeout(timeout_s):
                request = http.stream("POST", f"/exec/{number}/start", json=body, timeout=None)
                async with request as answer:
                    if answer.status_code >= 300:
                        await answer.aread()
                        raise SandboxGone(f"{_LOST}: {_said(answer)}")
                    async for kind, data in _frames(answer.aiter_raw()):
                        if kind == _STDOUT:
                            parts.append(data)
        except TimeoutError as error:
            raise SandboxError(f"container {self.name} did not answer within {timeout_s} s") from error
        except httpx.HTTPError as error:
            raise SandboxError(f"container {self.name} broke off: {error}") from error
        return b"".join(parts)

    async def put(self, path: str, data: bytes) -> None:
        """See ``remote.Transport``. By standard input, since archives are not unpacked into a tmpfs."""
        script = 'umask 077; head -c "$2" >"$1" && echo done'
        number = await self._exec(["/bin/sh", "-c", script, "sh", path, str(len(data))], stdin=True)
        headers = {"Connection": "Upgrade", "Upgrade": "tcp"}
        body = {"Detach": False, "Tty": False}
        timeout_s = self._engine._timeout_s
        try:
            async with self._engine._http.stream(
                "POST", f"/exec/{number}/start", json=body, headers=headers
            ) as answer:
                if answer.status_code != 101:
                    await answer.aread()
                    raise SandboxError(f"the engine opens no stream to a command: {_said(answer)}")
                stream = answer.extensions["network_stream"]
                if data:
                    await stream.write(data, timeout_s)
                async for kind, told in _frames(_pieces(stream, timeout_s)):
                    if kind == _STDOUT and told.strip() == b"done":
                        return
        except httpx.HTTPError as error:
            raise SandboxError(f"container {self.name} broke off: {error}") from error
        raise SandboxError(f"{path} could not be brought into container {self.name}: no space left, perhaps")

    async def end(self) -> None:
        """See ``remote.Transport``."""
        await self._engine.remove(self.name)


async def _pieces(stream: Any, timeout_s: float) -> AsyncIterator[bytes]:
    while piece := await stream.read(1 << 16, timeout_s):
        yield piece


async def _frames(pieces: AsyncIterator[bytes]) -> AsyncIterator[tuple[int, bytes]]:
    """The engine's multiplexed streams: kind (1 standard output, 2 standard error) and data."""
    buffer = bytearray()
    async for piece in pieces:
        buffer += piece
        while len(buffer) >= _FRAME.size:
            kind, size = _FRAME.unpack_from(buffer)
            if len(buffer) < _FRAME.size + size:
                break
            yield kind, bytes(buffer[_FRAME.size : _FRAME.size + size])
            del buffer[: _FRAME.size + size]


def _said(answer: httpx.Response) -> str:
    """What the engine told, in its own words."""
    try:
        told = answer.json()["message"]
    except (ValueError, KeyError, TypeError):
        told = answer.text[:500]
    return f"{answer.status_code} {told}"
