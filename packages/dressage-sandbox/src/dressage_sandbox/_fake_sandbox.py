"""A sandbox without processes."""

from __future__ import annotations

import asyncio
import errno
import inspect
import math
import posixpath
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .errors import FileTooLarge, InvalidSpec, SandboxGone, Unsupported, file_error
from .protocol import GIB, MIB, DirEntry, Endpoint, OnOutput, RunResult, SandboxSpec, Snapshot, Status

__all__ = ["FakeSandbox", "FakeService", "Invocation", "Script", "completed"]


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of ``run``, as it came."""

    command: str | Sequence[str]
    cwd: str | None
    env: Mapping[str, str]
    stdin: bytes
    timeout_s: float | None


Script = Callable[["FakeSandbox", Invocation], RunResult | Awaitable[RunResult]]
"""Answers a command; it may look at and change the sandbox's ``files``."""


def completed(
    stdout: bytes | str = b"", *, exit_code: int = 0, stderr: bytes | str = b"", timed_out: bool = False
) -> RunResult:
    """The result of a command that wrote this and nothing more."""
    out, err = (text.encode() if isinstance(text, str) else text for text in (stdout, stderr))
    return RunResult(exit_code, out, err, len(out), len(err), timed_out, 0.0)


_STOPPED = 143


class FakeService:
    """See ``protocol.Service``: it runs for as long as the script takes to answer."""

    def __init__(self, number: int, work: Awaitable[RunResult]) -> None:
        self.id = f"service-{number}"
        self._task = asyncio.ensure_future(work)

    @property
    def running(self) -> bool:
        """Whether the script has not answered yet."""
        return not self._task.done()

    async def wait(self, timeout_s: float | None = None) -> RunResult:
        """What the script answered."""
        async with asyncio.timeout(timeout_s):
            await asyncio.wait({self._task})
        return completed(exit_code=_STOPPED) if self._task.cancelled() else self._task.result()

    async def stop(self, *, grace_s: float = 2.0) -> RunResult:
        """Cancel the script."""
        self._task.cancel()
        return await self.wait()


@dataclass
class FakeSandbox:
    """See ``protocol.Sandbox``. ``calls`` lists what was run; ``files`` maps absolute paths to content."""

    spec: SandboxSpec
    script: Script
    id: str
    files: dict[str, bytes] = field(default_factory=dict)
    calls: list[Invocation] = field(default_factory=list)
    terminated: bool = False
    on_end: Callable[[FakeSandbox], None] = lambda sandbox: None
    on_snapshot: Callable[[FakeSandbox], Snapshot] | None = None
    services: list[FakeService] = field(default_factory=list)
    created: float = field(default_factory=time.monotonic)
    ttl_s: float = math.inf
    """What ``renew`` was last called with."""

    @property
    def relay_url(self) -> str | None:
        """As the real one's, where the spec names a relay; nothing listens there."""
        return "http://127.0.0.1:8800" if self.spec.relay else None

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
        """What the script answers, handed to ``on_output`` in one piece."""
        self._check()
        invocation = Invocation(command, cwd, dict(env or {}), stdin, timeout_s)
        self.calls.append(invocation)
        answer = self.script(self, invocation)
        result = await answer if inspect.isawaitable(answer) else answer
        if on_output is not None and result.stdout:
            on_output("stdout", result.stdout)
        if on_output is not None and result.stderr:
            on_output("stderr", result.stderr)
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
    ) -> FakeService:
        """Call the script in the background."""
        self._check()
        work = self.run(command, cwd=cwd, env=env, stdin=stdin, on_output=on_output)
        self.services.append(FakeService(len(self.services) + 1, work))
        return self.services[-1]

    async def read(self, path: str, *, offset: int = 0, max_bytes: int = MIB) -> bytes:
        """A part of a file."""
        self._check()
        full = self._path(path)
        if full not in self.files:
            raise file_error(errno.EISDIR if self._entries(full) else errno.ENOENT, path)
        return self.files[full][offset : offset + max_bytes]

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Keep a file."""
        self._check()
        full = self._path(path)
        if path.endswith("/") or self._entries(full):
            raise file_error(errno.EISDIR, path)
        self.files[full] = bytes(data)

    async def list(self, path: str) -> list[DirEntry]:
        """Entries of a folder that some file lies in; the work folder always exists."""
        self._check()
        full = self._path(path)
        entries = self._entries(full)
        if not entries and full not in ("/", posixpath.normpath(self.spec.workdir)):
            raise file_error(errno.ENOTDIR if full in self.files else errno.ENOENT, path)
        return [entries[name] for name in sorted(entries)]

    async def upload(self, source: Path, path: str, *, mode: int = 0o644) -> int:
        """Keep a copy of a host file."""
        if await asyncio.to_thread(source.exists) and not await asyncio.to_thread(source.is_file):
            raise InvalidSpec(f"source: {source} is not a regular file")
        await self.write(path, data := await asyncio.to_thread(source.read_bytes), mode=mode)
        return len(data)

    async def download(self, path: str, target: Path, *, max_bytes: int = GIB) -> int:
        """Write a file to the host."""
        data = await self.read(path, max_bytes=max_bytes + 1)
        if len(data) > max_bytes:
            raise FileTooLarge(errno.EFBIG, f"more than max_bytes={max_bytes}", path)
        return await asyncio.to_thread(target.write_bytes, data)

    async def expose(self, port: int) -> Endpoint:
        """Nothing listens in a fake."""
        self._check()
        raise Unsupported("expose: a fake sandbox runs no servers; use BubblewrapProvider")

    async def snapshot(self) -> Snapshot:
        """Remember the files."""
        self._check()
        if self.on_snapshot is None:
            raise Unsupported("snapshot: this fake was made without a provider")
        return self.on_snapshot(self)

    async def quiet(self) -> None:
        """Stop every service."""
        self._check()
        for service in self.services:
            await service.stop()

    async def status(self) -> Status:
        """Alive until terminated."""
        why = "the sandbox was terminated" if self.terminated else ""
        left = 0.0 if self.terminated else self.ttl_s
        return Status(not self.terminated, why, self.spec.owner, time.monotonic() - self.created, left)

    async def renew(self, ttl_s: float) -> None:
        """Remember it; a fake does not expire."""
        self._check()
        self.ttl_s = ttl_s

    async def terminate(self) -> None:
        """No more calls are taken."""
        if not self.terminated:
            self.terminated = True
            for service in self.services:
                await service.stop()
            self.on_end(self)

    def _check(self) -> None:
        if self.terminated:
            raise SandboxGone("the sandbox was terminated")

    def _path(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self.spec.workdir, path))

    def _entries(self, folder: str) -> dict[str, DirEntry]:
        prefix = folder.rstrip("/") + "/"
        found: dict[str, DirEntry] = {}
        for path, data in self.files.items():
            if path.startswith(prefix):
                name, deeper, _ = path[len(prefix) :].partition("/")
                found[name] = DirEntry(name, "dir", 0) if deeper else DirEntry(name, "file", len(data))
        return found
