"""A live bubblewrap sandbox: commands and files through its exec agent, and its end."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from .cgroups import kill_group, remove_group, usage
from .channel import Call, Channel
from .egress import Egress
from .errors import ArgumentTooLong, InvalidSpec, SandboxError, SandboxFileError, SandboxGone
from .inside import wire
from .launch import Process
from .owners import Record, boot_time
from .ports import Ports
from .protocol import GIB, MIB, DirEntry, Endpoint, OnOutput, RunResult, SandboxSpec, Snapshot, Status
from .requests import OTHER_WAY, arguments_of, numbers_of, path_of, variables_of
from .services import BubblewrapService, result_of
from .transfers import download, pack, unpack, upload

__all__ = ["BubblewrapSandbox"]

_GUARD_S = 5.0
"""How much longer than its time-out a command's answer may take before the agent counts as lost."""
_LIST_BYTES = 64 * MIB
_E2BIG = 7


class Home(Protocol):
    """What a sandbox needs of the provider that made it."""

    def ended(self, sandbox: BubblewrapSandbox) -> None:
        """Nothing of it is left."""

    def note(self, sandbox: BubblewrapSandbox) -> None:
        """Its record has changed."""

    async def snapshot(self, sandbox: BubblewrapSandbox) -> Snapshot:
        """Keep its work folder."""


class Stoppable(Protocol):
    """What serves a sandbox from the host and ends with it."""

    def stop(self) -> None:
        """At once; idempotent."""


class BubblewrapSandbox:
    """See ``protocol.Sandbox``. Made by ``BubblewrapProvider.create``."""

    def __init__(
        self,
        record: Record,
        spec: SandboxSpec,
        env: Mapping[str, str],
        process: Process,
        groups: tuple[Path, ...],
        home: Home,
    ) -> None:
        self.record = record
        self.spec = spec
        self._env = dict(env)
        self.process = process
        self.groups = groups
        self._home = home
        self._channel: Channel | None = None
        self._door: socket.socket | None = None
        self._ports: Ports | None = None
        self._relays: tuple[Stoppable, ...] = ()
        self._port: int | None = None
        self._ending: asyncio.Task[None] | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._expires = math.inf
        self._why = "the sandbox was terminated"
        self._watchers: list[Callable[[BubblewrapSandbox], None]] = []

    @property
    def id(self) -> str:
        """Unique on this host."""
        return self.record.id

    @property
    def relay_url(self) -> str | None:
        """``http://127.0.0.1:<port>`` as seen inside, where the spec named a relay."""
        return None if self._port is None else f"http://127.0.0.1:{self._port}"

    @property
    def refused(self) -> tuple[str, ...]:
        """The last requests to reach something that ``egress`` does not list, and why, oldest first."""
        return tuple(line for each in self._relays if isinstance(each, Egress) for line in each.refused)

    @property
    def alive(self) -> bool:
        """Whether it can still be used."""
        return self._ending is None and self._channel is not None and self._channel.gone is None

    @property
    def why(self) -> str:
        """Why it ended, if it has."""
        return self._why

    @property
    def pid(self) -> int:
        """Process 1 of the sandbox, as the host numbers it."""
        return self.process.inner_pid

    def attach(
        self, channel: Channel, door: socket.socket, relays: tuple[Stoppable, ...], port: int | None
    ) -> None:
        """Begin to serve: called once, when the agent is ready."""
        self._channel, self._door, self._relays, self._port = channel, door, relays, port
        self._ports = Ports(channel, door)

    def when_ended(self, watcher: Callable[[BubblewrapSandbox], None]) -> None:
        """Call this once, when the sandbox begins to end; at once where it has ended."""
        if self._ending is not None:
            watcher(self)
        else:
            self._watchers.append(watcher)

    async def renew(self, ttl_s: float) -> None:
        """The heartbeat: let the sandbox live ``ttl_s`` seconds from now (inf: no end).

        Raises:
            SandboxGone: it has ended already.
        """
        self._live()
        if not ttl_s > 0:
            raise InvalidSpec(f"ttl_s={ttl_s}: must be more than 0 seconds")
        self.set_expiry(ttl_s)

    async def status(self) -> Status:
        """How it does, from outside: no question to the inside, so that a stuck one cannot hold it up."""
        memory, processes = usage(self.groups) if self.alive else (None, None)
        return Status(
            alive=self.alive,
            why="" if self.alive else self._why,
            owner=self.record.label,
            age_s=max(0.0, time.time() - self.record.created),
            expires_in_s=max(0.0, self._expires - asyncio.get_running_loop().time()) if self.alive else 0.0,
            memory_bytes=memory,
            processes=processes,
        )

    def set_expiry(self, ttl_s: float) -> None:
        """Terminate it ``ttl_s`` seconds from now."""
        self._expires = asyncio.get_running_loop().time() + ttl_s
        self.record = replace(self.record, expires=boot_time() + ttl_s)
        self._home.note(self)
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if ttl_s != math.inf:
            self._expiry = asyncio.get_running_loop().call_later(ttl_s, self._expire)

    def _expire(self) -> None:
        self._why = "the sandbox's time to live is over"
        self._begin_end()

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

        A program that is missing answers exit code 127, one that cannot be executed 126, as in a shell.
        A background process that lets go of the output outlives its command, and ends with the sandbox.
        At the time-out the command's whole tree is killed, daemons too: exit code 124, ``timed_out``.
        ``on_output`` gets every byte as it comes; an exception of its own ends the command.

        Raises:
            InvalidSpec: an argument that cannot be honoured.
            ArgumentTooLong: more than the kernel's exec takes.
            SandboxFileNotFound: ``cwd`` does not exist.
            SandboxGone: the sandbox ended.
        """
        timeout = self.spec.limits.timeout_s if timeout_s is None else timeout_s
        if not timeout > 0:
            raise InvalidSpec("timeout_s must be more than 0")
        request = self._request(command, cwd, env, output_bytes, max(1, round(timeout * 1000)), on_output, 0)
        channel, call = self._call(output_bytes, on_output)
        try:
            if stdin:
                await channel.stream(wire.STDIN, call, stdin)
            channel.send(wire.RUN, call, request)
            last = await self._guarded(channel, call, timeout + _GUARD_S)
        except SandboxFileError as error:
            if error.errno == _E2BIG:
                raise ArgumentTooLong(
                    f"command and env together exceed what exec takes; {OTHER_WAY}"
                ) from None
            raise
        finally:
            if not call.done.done():
                channel.send(wire.CANCEL, call)
            channel.forget(call)
        return result_of(call, last)

    async def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        output_bytes: int | None = None,
        on_output: OnOutput | None = None,
    ) -> BubblewrapService:
        """Start a service: it has no time-out, and ends by itself, by ``stop``, or with the sandbox.

        Raises:
            InvalidSpec, ArgumentTooLong, SandboxFileNotFound, SandboxGone: as ``run``.
        """
        request = self._request(command, cwd, env, output_bytes, 0, on_output, wire.SERVICE)
        channel, call = self._call(output_bytes, on_output)
        call.started = asyncio.get_running_loop().create_future()
        try:
            if stdin:
                await channel.stream(wire.STDIN, call, stdin)
            channel.send(wire.RUN, call, request)
            either: set[asyncio.Future[Any]] = {call.started, call.done}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            channel.send(wire.CANCEL, call)
            channel.forget(call)
            raise
        service = BubblewrapService(channel, call)
        error = call.done.exception() if call.done.done() else None
        if error is not None:
            raise error
        return service

    def _call(self, output_bytes: int | None, on_output: OnOutput | None) -> tuple[Channel, Call]:
        channel = self._live()
        call = channel.start(2 * self._kept(output_bytes) + 4096)
        call.on_output = on_output
        return channel, call

    def _kept(self, output_bytes: int | None) -> int:
        return self.spec.limits.output_bytes if output_bytes is None else output_bytes

    def _request(
        self,
        command: str | Sequence[str],
        cwd: str | None,
        env: Mapping[str, str] | None,
        output_bytes: int | None,
        timeout_ms: int,
        on_output: OnOutput | None,
        flags: int,
    ) -> bytes:
        limit = self._kept(output_bytes)
        if limit < 1:
            raise InvalidSpec("output_bytes must be more than 0")
        argv = arguments_of(command)
        variables = variables_of({**self._env, **(env or {})})
        flags |= 0 if on_output is None else wire.LIVE
        numbers = [b"%d" % timeout_ms, b"%d" % limit]
        rest = [path_of(cwd or self.spec.workdir), b"%d" % flags, b"%d" % len(argv)]
        return wire.pack(*numbers, *rest, *argv, *variables)

    async def _guarded(self, channel: Channel, call: Call, patience_s: float) -> bytes:
        """The answer; an agent that stays silent too long is lost, and the sandbox with it."""
        loop = asyncio.get_running_loop()

        def check(seen: int) -> None:
            if channel.received != seen:  # this process was away, not the agent: its answers are coming in
                guards.append(loop.call_later(_GUARD_S, check, channel.received))
                return
            self._why = "the sandbox stopped answering"
            channel.end(SandboxGone(self._why))

        guards = [loop.call_later(patience_s, check, channel.received)]
        try:
            return await channel.answer(call, wire.CANCEL)
        finally:
            guards[-1].cancel()

    # -- files ------------------------------------------------------------------------------------------
    async def read(self, path: str, *, offset: int = 0, max_bytes: int = MIB) -> bytes:
        """At most ``max_bytes`` of a regular file from ``offset``; relative paths start at the workdir.

        Raises:
            SandboxFileNotFound, NotARegularFile, SandboxFileError: as the inside answered.
            SandboxGone: the sandbox ended.
        """
        if offset < 0 or max_bytes < 0:
            raise InvalidSpec("offset and max_bytes must not be negative")
        channel = self._live()
        call = channel.start(max_bytes)
        channel.send(wire.READ, call, wire.pack(path_of(path), b"%d" % offset, b"%d" % max_bytes))
        (size,) = numbers_of(wire.pack(await channel.answer(call, wire.ABORT)), 1)
        data = call.joined(wire.CHUNK)
        if len(data) != size:
            raise SandboxGone(f"the sandbox announced {size} bytes and sent {len(data)}")
        return data

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a whole file, making parent folders. It appears at once, or not at all.

        A link, FIFO or device of that name is replaced, never followed.

        Raises:
            SandboxFileError: as the inside answered (ENOSPC, EROFS, ...).
            SandboxGone: the sandbox ended.
        """
        channel = self._live()
        call = channel.start(0)
        try:
            channel.send(wire.OPEN, call, wire.pack(path_of(path), b"%d" % (mode & 0o7777)))
            await channel.stream(wire.DATA, call, data)
            channel.send(wire.DONE, call)
            (size,) = numbers_of(wire.pack(await channel.answer(call, wire.ABORT)), 1)
        finally:
            if not call.done.done():
                channel.send(wire.ABORT, call)
            channel.forget(call)
        if size != len(data):
            raise SandboxGone(f"{len(data)} bytes were sent for {path!r} and {size} written")

    async def list(self, path: str) -> list[DirEntry]:
        """Entries of a folder, sorted by name; at most 100,000.

        Raises:
            SandboxFileNotFound, SandboxFileError: as the inside answered.
            SandboxGone: the sandbox ended.
        """
        channel = self._live()
        call = channel.start(_LIST_BYTES)
        channel.send(wire.LIST, call, path_of(path))
        await channel.answer(call, wire.ABORT)
        fields = [field for body in call.parts.get(wire.ENTRIES, ()) for field in wire.unpack(body)]
        try:
            entries = [
                DirEntry(os.fsdecode(name), kind.decode("ascii"), int(size))
                for kind, size, name in zip(fields[::3], fields[1::3], fields[2::3], strict=True)
            ]
        except ValueError as error:
            raise SandboxGone("the sandbox sent a broken folder") from error
        return sorted(entries, key=lambda entry: entry.name)

    async def upload(self, source: Path, path: str, *, mode: int = 0o644) -> int:
        """Copy a regular file of the host inside, streamed; it appears whole or not at all.

        Raises:
            SandboxFileError, SandboxGone: as ``write``; OSError: ``source`` cannot be read.
        """
        return await upload(self._live(), source, path, mode)

    async def download(self, path: str, target: Path, *, max_bytes: int = GIB) -> int:
        """Copy a regular file of the inside to ``target``, streamed; holes stay holes.

        Raises:
            FileTooLarge: it has more than ``max_bytes``.
            SandboxFileError, SandboxGone: as ``read``; OSError: ``target`` cannot be written.
        """
        return await download(self._live(), path, target, max_bytes)

    async def pack(self, path: str, target: Path, *, max_bytes: int = GIB) -> int:
        """Write a folder of the inside to ``target`` as a tar archive; see ``transfers.pack``."""
        channel, door = self._live(), self._door
        assert door is not None
        return await pack(channel, door, path, target, max_bytes)

    async def unpack(self, source: Path, path: str) -> None:
        """Fill a folder of the inside from an archive of ``pack``; see ``transfers.unpack``."""
        channel, door = self._live(), self._door
        assert door is not None
        await unpack(channel, door, source, path)

    async def snapshot(self) -> Snapshot:
        """The work folder as it is now, for ``SandboxSpec.snapshot`` of this provider.

        Raises:
            FileTooLarge: its archive (holes count) is longer than ``limits.disk_bytes`` and some room.
            SandboxGone: the sandbox ended.
        """
        self._live()
        return await self._home.snapshot(self)

    async def expose(self, port: int) -> Endpoint:
        """Forward a port of the host's loopback to this port of the inside's. Idempotent per port.

        Raises:
            SandboxGone: the sandbox ended.
        """
        self._live()
        assert self._ports is not None
        return await self._ports.expose(port)

    # -- end --------------------------------------------------------------------------------------------
    async def terminate(self) -> None:
        """End everything inside and remove every trace: idempotent, within two seconds.

        Raises:
            SandboxError: something could not be removed; named in the message.
        """
        await asyncio.shield(self._begin_end())

    def channel_ended(self) -> None:
        """The inside went away by itself, or broke the protocol: clean up."""
        if self._ending is None:
            if self._channel is not None and self._channel.gone is not None:
                self._why = str(self._channel.gone)
            self._begin_end()

    def abandon(self) -> None:
        """At interpreter exit, without an event loop: kill, and remove what can be removed at once."""
        self.process.kill()
        kill_group(self.groups)

    def _begin_end(self) -> asyncio.Task[None]:
        failed = self._ending is not None and self._ending.done() and _failed(self._ending)
        if self._ending is None or failed:
            self._ending = asyncio.ensure_future(self._end())
            self._ending.add_done_callback(_consume)
            watchers, self._watchers = self._watchers, []
            for watcher in watchers:
                watcher(self)
        return self._ending

    async def _end(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        for relay in self._relays:
            relay.stop()
        if self._ports is not None:
            self._ports.stop()
        if self._channel is not None:
            self._channel.end(SandboxGone(self._why))
        ended = await self.process.end()
        left = await remove_group(self.groups)
        if ended and not left:
            self._home.ended(self)
        else:
            rest = [str(path) for path in left] + ([] if ended else [f"process {self.pid}"])
            raise SandboxError(f"sandbox {self.record.id} could not be removed whole: {', '.join(rest)}")

    def _live(self) -> Channel:
        if self._channel is None or self._ending is not None:
            raise SandboxGone(self._why)
        return self._channel


def _consume(task: asyncio.Task[Any]) -> None:
    """A failure of the end is raised by terminate(); where nobody calls that, it is not 'never retrieved'."""
    if not task.cancelled():
        task.exception()


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None
