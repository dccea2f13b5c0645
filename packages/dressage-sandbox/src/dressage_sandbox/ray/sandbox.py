"""A sandbox on another node, and its services: every call goes straight to the node that holds it."""

from __future__ import annotations

import asyncio
import math
import os
import stat
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidSpec, SandboxGone, Unsupported
from ..protocol import GIB, MIB, DirEntry, Endpoint, OnOutput, RunResult, SandboxSpec, Snapshot, Status

if TYPE_CHECKING:
    from ._cluster import Node

__all__ = ["RaySandbox", "RayService"]

_PIECE = 4 << 20
_GUARD_S = 30.0


class RaySandbox:
    """See ``protocol.Sandbox``. Made by ``RayProvider.create``."""

    def __init__(
        self,
        spec: SandboxSpec,
        node: Node,
        inner_id: str,
        relay_url: str | None,
        on_end: Callable[[RaySandbox], None],
    ) -> None:
        self.spec = spec
        self.node = node
        self._inner = inner_id
        self._relay_url = relay_url
        self._on_end = on_end
        self._why = ""
        self._ending: asyncio.Task[None] | None = None
        self._made = time.monotonic()

    @property
    def id(self) -> str:
        """Unique in the cluster."""
        return f"{self.node.id[:12]}/{self._inner}"

    @property
    def relay_url(self) -> str | None:
        """The relay as seen inside, where the spec names one."""
        return self._relay_url

    @property
    def alive(self) -> bool:
        """Whether it can still be used, as far as is known here."""
        return not self._why

    def _check(self) -> None:
        if self._why:
            raise SandboxGone(self._why)

    async def _ask(self, method: str, *arguments: Any, patience_s: float | None = None) -> Any:
        self._check()
        try:
            return await self.node.ask(method, self._inner, *arguments, patience_s=patience_s)
        except SandboxGone as error:
            self.lost(str(error))
            raise

    async def _call(self, method: str, *arguments: Any, patience_s: float | None = None, **named: Any) -> Any:
        return await self._ask("call", method, arguments, named, patience_s=patience_s)

    # -- commands ---------------------------------------------------------------------------------------
    async def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        output_bytes: int | None = None,
        on_output: OnOutput | None = None,
    ) -> RunResult:
        """See ``protocol.Sandbox``. Raises ``SandboxGone`` where the node is lost."""
        _refuse_streams(on_output)
        seconds = self.spec.limits.timeout_s if timeout_s is None else timeout_s
        patience_s = max(0.0, seconds) + _GUARD_S
        result: RunResult = await self._call(
            "run",
            command,
            cwd=cwd,
            env=env,
            stdin=stdin,
            timeout_s=timeout_s,
            output_bytes=output_bytes,
            patience_s=patience_s,
        )
        return result

    async def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        output_bytes: int | None = None,
        on_output: OnOutput | None = None,
    ) -> RayService:
        """See ``protocol.Sandbox``."""
        _refuse_streams(on_output)
        named = {"cwd": cwd, "env": env, "stdin": stdin, "output_bytes": output_bytes}
        return RayService(self, str(await self._ask("start", (command,), named)))

    async def of_service(self, service_id: str, method: str, named: Any, patience_s: float) -> RunResult:
        """A method of a service of this sandbox."""
        result: RunResult = await self._ask("of_service", service_id, method, named, patience_s=patience_s)
        return result

    # -- files ------------------------------------------------------------------------------------------
    async def read(self, path: str, *, offset: int = 0, max_bytes: int = MIB) -> bytes:
        """See ``protocol.Sandbox``."""
        data: bytes = await self._call("read", path, offset=offset, max_bytes=max_bytes)
        return data

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See ``protocol.Sandbox``."""
        await self._call("write", path, data, mode=mode)

    async def list(self, path: str) -> list[DirEntry]:
        """See ``protocol.Sandbox``."""
        entries: list[DirEntry] = await self._call("list", path)
        return entries

    async def upload(self, source: Path, path: str, *, mode: int = 0o644) -> int:
        """Copy a regular file of this machine inside, by way of a file of the node."""
        fd = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        name = ""
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise InvalidSpec(f"source: {source} is not a regular file")
            self._check()
            name = await self.node.ask("new_file")
            while piece := await asyncio.to_thread(os.read, fd, _PIECE):
                await self.node.ask("append", name, piece)
            size: int = await self._ask("upload", name, path, mode)
        finally:
            os.close(fd)
            await self._drop(name)
        return size

    async def download(self, path: str, target: Path, *, max_bytes: int = GIB) -> int:
        """Copy a regular file out to this machine, by way of a file of the node."""
        self._check()
        name = await self.node.ask("new_file")
        try:
            size: int = await self._ask("download", path, name, max_bytes)
            fd, part = tempfile.mkstemp(prefix=f".{target.name[:64]}-", dir=target.parent)
            try:
                with os.fdopen(fd, "wb") as file:
                    while file.tell() < size:
                        piece = await self.node.ask("piece", name, file.tell(), _PIECE)
                        if not piece:
                            raise SandboxGone(f"{path} became shorter on its way")
                        await asyncio.to_thread(file.write, piece)
                os.replace(part, target)  # noqa: PTH105
            except BaseException:
                os.unlink(part)  # noqa: PTH108
                raise
        finally:
            await self._drop(name)
        return size

    async def _drop(self, name: str) -> None:
        if name and self.alive:
            await self.node.ask("drop", name)

    # -- the rest ---------------------------------------------------------------------------------------
    async def expose(self, port: int) -> Endpoint:
        """Refused."""
        raise Unsupported("expose: a port of another node's loopback is not reached from here")

    async def snapshot(self) -> Snapshot:
        """See ``protocol.Sandbox``. Sandboxes that begin with it are made on the same node."""
        made: Snapshot = await self._call("snapshot")
        return Snapshot(f"{self.node.id}/{made.id}", made.size_bytes)

    async def quiet(self) -> None:
        """See ``protocol.Sandbox``."""
        await self._call("quiet")

    async def status(self) -> Status:
        """How it does; also answers after the end."""
        if not self.alive:
            return Status(False, self._why, self.spec.owner, time.monotonic() - self._made, 0.0)
        try:
            told: Status = await self._call("status")
        except SandboxGone:
            return await self.status()
        if not told.alive:
            self.lost(told.why)
        return told

    async def renew(self, ttl_s: float) -> None:
        """See ``protocol.Sandbox``."""
        await self._call("renew", ttl_s)

    def lost(self, why: str) -> None:
        """It ended without us: every later call fails, and its place is free."""
        if not self._why:
            self._why = why
            self._on_end(self)

    async def terminate(self) -> None:
        """End it: idempotent, and bounded in time. On a node that is lost, all has ended."""
        if self._ending is None or (self._ending.done() and self._ending.exception() is not None):
            self._ending = asyncio.ensure_future(self._end())
            self._ending.add_done_callback(lambda done: done.exception())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        try:
            await self.node.ask("terminate", self._inner, patience_s=_GUARD_S)
        except SandboxGone as error:
            self.lost(str(error))
        self.lost("the sandbox was terminated")


class RayService:
    """See ``protocol.Service``."""

    def __init__(self, sandbox: RaySandbox, service_id: str) -> None:
        self._sandbox = sandbox
        self._id = service_id
        self._result: RunResult | None = None

    @property
    def id(self) -> str:
        """Unique in its sandbox."""
        return self._id

    @property
    def running(self) -> bool:
        """Whether it has not ended, as far as was asked."""
        return self._result is None and self._sandbox.alive

    async def wait(self, timeout_s: float | None = None) -> RunResult:
        """How it ended; ``TimeoutError`` where it still runs."""
        if self._result is None:
            patience_s = math.inf if timeout_s is None else timeout_s + _GUARD_S
            named = {"timeout_s": timeout_s}
            self._result = await self._sandbox.of_service(self._id, "wait", named, patience_s)
        return self._result

    async def stop(self, *, grace_s: float = 2.0) -> RunResult:
        """SIGTERM, after ``grace_s`` SIGKILL, for its whole tree."""
        if self._result is None:
            named = {"grace_s": grace_s}
            self._result = await self._sandbox.of_service(self._id, "stop", named, grace_s + _GUARD_S)
        return self._result


def _refuse_streams(on_output: OnOutput | None) -> None:
    if on_output is not None:
        raise Unsupported("on_output: a callback does not cross nodes; output comes at a command's end")
