"""A provider without processes, for the tests of whatever uses sandboxes.

Files are a dictionary; commands answer what a script says.
"""

from __future__ import annotations

import errno
import inspect
import itertools
import os
import posixpath
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .errors import SandboxGone, file_error
from .protocol import MIB, DirEntry, RunResult, SandboxSpec

__all__ = ["FakeProvider", "FakeSandbox", "Invocation", "Script", "completed"]


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
    ) -> RunResult:
        """What the script answers."""
        self._check()
        invocation = Invocation(command, cwd, dict(env or {}), stdin, timeout_s)
        self.calls.append(invocation)
        answer = self.script(self, invocation)
        return await answer if inspect.isawaitable(answer) else answer

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

    async def terminate(self) -> None:
        """No more calls are taken."""
        if not self.terminated:
            self.terminated = True
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


class FakeProvider:
    """Makes fake sandboxes and remembers them.

    Args:
        script: a function that answers commands, or results that are given out in order over all
            sandboxes; the default answers exit code 0 without output.
        files: what every sandbox begins with.
        errors: raised by ``create`` in order before it succeeds.
    """

    def __init__(
        self,
        script: Script | Iterable[RunResult] | None = None,
        *,
        files: Mapping[str, bytes] | None = None,
        errors: Iterable[Exception] = (),
    ) -> None:
        self._script = _script(script)
        self._files = dict(files or {})
        self._errors = list(errors)
        self._numbers = itertools.count(1)
        self.created: list[FakeSandbox] = []
        self.live: list[FakeSandbox] = []

    async def create(self, spec: SandboxSpec) -> FakeSandbox:
        """A fake sandbox, or the next of ``errors``."""
        if self._errors:
            raise self._errors.pop(0)
        name = f"fake-{os.getpid()}-{next(self._numbers)}"
        sandbox = FakeSandbox(spec, self._script, name, dict(self._files), on_end=self.live.remove)
        self.created.append(sandbox)
        self.live.append(sandbox)
        return sandbox

    async def close(self) -> None:
        """Terminate all."""
        for sandbox in list(self.live):
            await sandbox.terminate()


def _script(script: Script | Iterable[RunResult] | None) -> Script:
    if script is None:
        return lambda sandbox, invocation: completed()
    if callable(script):
        return script
    results = iter(script)

    def in_order(sandbox: FakeSandbox, invocation: Invocation) -> RunResult:
        try:
            return next(results)
        except StopIteration:
            raise AssertionError(f"no result left for {invocation.command!r}") from None

    return in_order
