"""Commands and services of a remote sandbox."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Mapping, Sequence

from ..errors import InvalidSpec, SandboxError, SandboxFileNotFound, SandboxGone
from ..protocol import RunResult, SandboxSpec
from ..requests import arguments_of, variables_of
from . import scripts
from .reports import result_of
from .transport import Transport
from .work import Life

__all__ = ["Commands", "RemoteService"]

_GUARD_S = 10.0
"""How long the report of a command that was killed may take before its sandbox counts as lost."""
_SCRIPT_S = 60.0
"""How long a script of ours may take."""
_RETRY_S = 1.0
_LONGEST_SCRIPT = 96 << 10
"""A script goes as one argument, of which Linux takes 128 KiB."""


class Commands:
    """Runs scripts over a transport."""

    def __init__(self, transport: Transport, life: Life, spec: SandboxSpec, env: Mapping[str, str]) -> None:
        self._transport = transport
        self._life = life
        self._spec = spec
        self._env = env
        self._numbers = itertools.count(1)

    async def execute(self, script: str, *, timeout_s: float | None, as_root: bool = False) -> bytes:
        """A script's output; a long one, or one that is no UTF-8, goes by way of a file."""
        raw = script.encode(errors="surrogateescape")
        try:
            short = len(raw) <= _LONGEST_SCRIPT and bool(script.encode())
        except UnicodeEncodeError:
            short = False
        if short:
            return await self._transport.run(script, timeout_s=timeout_s, as_root=as_root)
        path = f"/tmp/.dressage-script-{secrets.token_hex(8)}"
        await self._transport.put(path, raw)
        line = f"sh {path}; rm -f {path}"
        return await self._transport.run(line, timeout_s=timeout_s, as_root=as_root)

    async def ask(self, script: str, *, timeout_s: float | None = _SCRIPT_S) -> bytes:
        """The answer to a script of ours, or ``SandboxGone`` as soon as the sandbox has ended."""
        self._life.check()
        return await self._life.result(self.execute(script, timeout_s=timeout_s))

    async def run(
        self,
        command: str | Sequence[str],
        cwd: str,
        env: Mapping[str, str] | None,
        stdin: bytes,
        timeout_s: float,
        limit: int,
    ) -> RunResult:
        """See ``protocol.Sandbox.run``."""
        script = await self._script(command, cwd, env, stdin, limit)
        began = time.monotonic()  # the host's clock: the inside's lags after a pause
        work = self._life.begin(self.execute(script.text(detached=False), timeout_s=None))
        try:
            timed_out = not await self._life.either(work, timeout_s)
            if timed_out:
                await self._life.result(self._kill(script))
                if not await self._life.either(work, _GUARD_S):
                    raise SandboxGone("a command gave no report after its end")
            seconds = time.monotonic() - began
            return result_of(self._life.outcome(work), limit, seconds, cwd, timed_out=timed_out)
        finally:
            if not work.done():
                work.cancel()
                if not self._life.over:
                    self._life.begin(self._kill(script))

    async def start(
        self,
        command: str | Sequence[str],
        cwd: str,
        env: Mapping[str, str] | None,
        stdin: bytes,
        limit: int,
    ) -> RemoteService:
        """See ``protocol.Sandbox.start``."""
        script = await self._script(command, cwd, env, stdin, limit)
        answer = (await self.ask(script.text(detached=True))).strip()
        if answer == b"CWD":
            raise SandboxFileNotFound(2, "No such file or directory", cwd)
        if answer != b"started":
            raise SandboxGone(f"a service could not be started: {answer[:200]!r}")
        return RemoteService(self, self._life, script)

    async def _script(
        self,
        command: str | Sequence[str],
        cwd: str,
        env: Mapping[str, str] | None,
        stdin: bytes,
        limit: int,
    ) -> scripts.RunScript:
        if limit < 1:
            raise InvalidSpec("output_bytes must be more than 0")
        argv, variables = arguments_of(command), {**self._env, **(env or {})}
        variables_of(variables)
        self._life.check()
        script = scripts.RunScript(
            secrets.token_hex(8), next(self._numbers), argv, variables, cwd, None, limit, self._spec.limits
        )
        if not stdin:
            return script
        path = f"{script.folder}.in"
        await self._life.result(self._transport.put(path, stdin))
        return scripts.RunScript(
            script.id, script.number, argv, variables, cwd, path, limit, self._spec.limits
        )

    async def _kill(self, script: scripts.RunScript) -> None:
        text = scripts.kills(script.id, script.tag)
        if (await self.execute(text, timeout_s=_SCRIPT_S, as_root=True)).strip() != b"gone":
            raise SandboxGone("a command whose time is over could not be ended")

    async def stop(self, script: scripts.RunScript, grace_s: float) -> None:
        """End a service's tree, with a grace."""
        text = scripts.stops(script.id, script.tag, script.folder, grace_s)
        await self._life.result(self.execute(text, timeout_s=grace_s + _SCRIPT_S, as_root=True))


class RemoteService:
    """See ``protocol.Service``. Its record lies inside, so that a broken connection loses nothing."""

    def __init__(self, commands: Commands, life: Life, script: scripts.RunScript) -> None:
        self._commands = commands
        self._life = life
        self._script = script
        self._watch = life.begin(self._watched())

    @property
    def id(self) -> str:
        """Unique in its sandbox."""
        return f"service-{self._script.number}"

    @property
    def running(self) -> bool:
        """Whether it has not ended, as far as is known here."""
        return not self._watch.done()

    async def wait(self, timeout_s: float | None = None) -> RunResult:
        """How it ended.

        Raises:
            TimeoutError: it still runs after ``timeout_s``.
            SandboxGone: the sandbox ended first.
        """
        if not self._watch.done() and not await self._life.either(self._watch, timeout_s):
            raise TimeoutError(f"{self.id} still runs after {timeout_s:g} s")
        if self._watch.cancelled():
            raise SandboxGone(self._life.why or "the sandbox was terminated")
        return self._life.outcome(self._watch)

    async def stop(self, *, grace_s: float = 2.0) -> RunResult:
        """SIGTERM for its whole tree, after ``grace_s`` SIGKILL. Idempotent."""
        if grace_s < 0:
            raise InvalidSpec("grace_s must not be negative")
        if self.running:
            self._life.check()
            await self._commands.stop(self._script, grace_s)
        return await self.wait(grace_s + _GUARD_S)

    async def _watched(self) -> RunResult:
        began = time.monotonic()
        while True:
            naps = self._life.naps
            try:
                report = await self._commands.execute(scripts.waits(self._script.folder), timeout_s=None)
            except SandboxGone:
                if self._life.over or not (self._life.asleep or self._life.naps != naps):
                    raise
                await asyncio.sleep(_RETRY_S)  # it is not gone, but was paused under the call
                continue
            except SandboxError:  # unreachable for now: what it writes is kept inside
                await asyncio.sleep(_RETRY_S)
                continue
            break
        seconds = time.monotonic() - began
        result = result_of(report, self._script.limit, seconds, self._script.cwd, timed_out=False)
        await self._commands.execute(scripts.ends(self._script.folder), timeout_s=_SCRIPT_S)
        return result
