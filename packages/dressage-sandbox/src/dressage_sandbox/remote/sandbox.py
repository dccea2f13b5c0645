"""A sandbox that is reached over a transport."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from ..errors import InvalidSpec, SandboxError, Unsupported
from ..protocol import GIB, MIB, DirEntry, Endpoint, OnOutput, RunResult, SandboxSpec, Snapshot, Status
from ..requests import check_seconds
from .commands import Commands, RemoteService
from .files import Files
from .snapshots import Snapshots
from .transport import Transport
from .work import Life

__all__ = ["RemoteSandbox"]

_END_S = 30.0
_RETRY_S, _RETRY_MAX_S, _MOST_RETRIES = 1.0, 60.0, 20
_log = logging.getLogger("dressage_sandbox.remote")


class RemoteSandbox:
    """See ``protocol.Sandbox``. Made by a provider.

    Args:
        sandbox_id: as the provider numbers it.
        spec: what was asked for.
        transport: reaches it.
        on_end: is told once everything is gone.
        relay_url: the relay as seen inside.
        expose: makes a port reachable; None: this provider cannot.
        snapshots: where work folders are kept; None: this provider keeps none.
    """

    def __init__(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        transport: Transport,
        *,
        on_end: Callable[[RemoteSandbox], None],
        relay_url: str | None = None,
        expose: Callable[[int], Awaitable[Endpoint]] | None = None,
        snapshots: Snapshots | None = None,
    ) -> None:
        self.spec = spec
        self.transport = transport
        self.owner = spec.owner
        self._id = sandbox_id
        self._on_end = on_end
        self._relay_url = relay_url
        self._expose = expose
        self._snapshots = snapshots
        self._life = Life(self.lost)
        self._commands = Commands(transport, self._life, spec, _base_env(spec))
        self._files = Files(transport, self._commands, self._life, spec.workdir)
        self._ending: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False
        self._made = time.monotonic()
        self._expires = math.inf
        self.set_expiry(spec.ttl_s)

    @property
    def id(self) -> str:
        """As the provider numbers it."""
        return self._id

    @property
    def relay_url(self) -> str | None:
        """The relay as seen inside, where the spec names one."""
        return self._relay_url

    @property
    def alive(self) -> bool:
        """Whether it can still be used, as far as is known here."""
        return not self._life.over

    @property
    def expires_in_s(self) -> float:
        """Seconds left by this host's monotonic clock."""
        return max(0.0, self._expires - time.monotonic())

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
        """Run argv (a sequence) or a shell line (a str), and wait until it and its output have ended.

        Raises:
            InvalidSpec, ArgumentTooLong: an argument that cannot be honoured.
            SandboxFileNotFound: ``cwd`` does not exist.
            SandboxGone: the sandbox ended.
            Unsupported: ``on_output``.
        """
        _refuse_streams(on_output)
        timeout = self.spec.limits.timeout_s if timeout_s is None else timeout_s
        limit = self.spec.limits.output_bytes if output_bytes is None else output_bytes
        check_seconds("timeout_s", timeout)
        return await self._commands.run(command, cwd or self.spec.workdir, env, stdin, timeout, limit)

    async def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        output_bytes: int | None = None,
        on_output: OnOutput | None = None,
    ) -> RemoteService:
        """Start a service: no time-out is on it, and it ends with its sandbox at the latest."""
        _refuse_streams(on_output)
        limit = self.spec.limits.output_bytes if output_bytes is None else output_bytes
        return await self._commands.start(command, cwd or self.spec.workdir, env, stdin, limit)

    # -- files ------------------------------------------------------------------------------------------
    async def read(self, path: str, *, offset: int = 0, max_bytes: int = MIB) -> bytes:
        """At most ``max_bytes`` of a regular file from ``offset``."""
        return await self._files.read(path, offset, max_bytes)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a whole file, making parent folders. It appears at once, or not at all."""
        await self._files.write(path, data, mode)

    async def list(self, path: str) -> list[DirEntry]:
        """Entries of a folder, sorted by name."""
        return await self._files.list(path)

    async def upload(self, source: Path, path: str, *, mode: int = 0o644) -> int:
        """Copy a regular file of this machine inside; returns its bytes."""
        return await self._files.upload(source, path, mode)

    async def download(self, path: str, target: Path, *, max_bytes: int = GIB) -> int:
        """Copy a regular file out; returns its bytes."""
        return await self._files.download(path, target, max_bytes)

    # -- the rest ---------------------------------------------------------------------------------------
    async def expose(self, port: int) -> Endpoint:
        """Where a port of the inside is reached from here."""
        self._life.check()
        if self._expose is None:
            raise Unsupported("expose: this provider reaches no port of the inside")
        if not 0 < port < 65536:
            raise InvalidSpec(f"port {port}: give 1 to 65535")
        return await self._expose(port)

    async def snapshot(self) -> Snapshot:
        """The work folder as it is now, for ``SandboxSpec.snapshot`` of the same provider.

        Raises:
            FileTooLarge: its archive is longer than ``limits.disk_bytes`` and some room.
        """
        self._life.check()
        if self._snapshots is None:
            raise Unsupported("snapshot: this provider keeps no work folders; download what is needed")
        limit = self.spec.limits.disk_bytes
        return await self._snapshots.take(self._commands, self._files, self.spec.workdir, limit)

    async def quiet(self) -> None:
        """Refused: what was left running cannot be told from what runs our own commands over there."""
        self._life.check()
        raise Unsupported("quiet: this provider cannot tell what was left running; use another sandbox")

    async def begin_with_snapshot(self) -> None:
        """Fill the work folder as the spec says; for providers, once it is there."""
        if self.spec.snapshot is not None:
            assert self._snapshots is not None
            told = (self._commands, self._files, self.spec.workdir, self.spec.snapshot)
            await self._snapshots.restore(*told)

    async def status(self) -> Status:
        """How it does, as far as is known here."""
        age = time.monotonic() - self._made
        left = 0.0 if self._life.over else self.expires_in_s
        return Status(not self._life.over, self._life.why, self.owner, age, left)

    async def renew(self, ttl_s: float) -> None:
        """Let it live ``ttl_s`` seconds from now (inf: no end)."""
        self._life.check()
        if not ttl_s > 0:
            raise InvalidSpec("ttl_s must be more than 0")
        self.set_expiry(ttl_s)

    def set_expiry(self, ttl_s: float) -> None:
        """As ``renew``, at once."""
        self._expires = time.monotonic() + ttl_s
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if ttl_s != math.inf:
            self._timer = asyncio.get_running_loop().call_later(ttl_s, self._expire)

    def _expire(self) -> None:
        self.lost("the sandbox's time to live is over")

    def lost(self, why: str) -> None:
        """It has ended, or must: every call under way fails, and what is left is cleaned up behind."""
        self._life.end(why)
        self._end_behind()

    def _end_behind(self, failed: int = 0) -> None:
        """End it although nobody waits for that; again, less and less often, where it was not certain."""
        if self._ended or failed > _MOST_RETRIES:
            return
        loop, wait_s = asyncio.get_running_loop(), min(_RETRY_MAX_S, _RETRY_S * 2.0**failed)

        def done(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                _log.warning("sandbox %s: %s; tried again in %g s", self._id, error, wait_s)
                loop.call_later(wait_s, self._end_behind, failed + 1)

        self._begin_end().add_done_callback(done)

    async def terminate(self) -> None:
        """End everything inside and remove every trace: idempotent, and bounded in time.

        Raises:
            SandboxError: it is not certain that it has ended; call again.
        """
        self._life.end("the sandbox was terminated")
        await asyncio.shield(self._begin_end())

    def _begin_end(self) -> asyncio.Task[None]:
        task = self._ending
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._ending = asyncio.ensure_future(self._end())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._life.drained()
        try:
            async with asyncio.timeout(_END_S):
                await self.transport.end()
        except TimeoutError as error:
            raise SandboxError(f"sandbox {self._id} has not ended within {_END_S:g} s") from error
        self._ended = True
        self._on_end(self)


def _refuse_streams(on_output: OnOutput | None) -> None:
    if on_output is not None:
        raise Unsupported("on_output: this provider hands output over at a command's end")


def _base_env(spec: SandboxSpec) -> dict[str, str]:
    own = {"HOME": spec.workdir, "USER": "agent", "LANG": "C.UTF-8", "TMPDIR": "/tmp"}
    return {**own, **spec.env}
