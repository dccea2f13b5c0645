"""A live bubblewrap sandbox: commands and files through its exec agent, and its end."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ._commands import CommandCalls
from ._files import FileCalls
from .cgroups import oom_kills, remove_group, usage
from .channel import Channel
from .egress import Egress
from .errors import InvalidSpec, OutOfMemory, SandboxError, SandboxGone, again
from .groups import kill_group
from .inside.wire import MAX_DOWNLOADS
from .launch import Process
from .owner import boot_time
from .owners import Record
from .ports import Ports
from .protocol import Endpoint, SandboxSpec, Snapshot, Status
from .quota import Quota

__all__ = ["BubblewrapSandbox"]

_RETRY_S, _MOST_RETRIES = 0.5, 8
_LOOP_ENDED = "the event loop that the sandbox was made in has ended, and the sandbox with it"
OTHER_LOOP = "it is in use in another event loop, of another thread: make a provider for each loop"


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


class BubblewrapSandbox(CommandCalls, FileCalls):
    """See ``protocol.Sandbox``. Made by ``BubblewrapProvider.create``."""

    def __init__(
        self,
        record: Record,
        spec: SandboxSpec,
        env: Mapping[str, str],
        process: Process,
        groups: tuple[Path, ...],
        home: Home,
        quota: Quota | None = None,
    ) -> None:
        self.record = record
        self.spec = spec
        self._env = dict(env)
        self.process = process
        self.groups = groups
        self._home = home
        self.quota = quota
        self._channel: Channel | None = None
        self._door: socket.socket | None = None
        self._ports: Ports | None = None
        self._relays: tuple[Stoppable, ...] = ()
        self._port: int | None = None
        self._ending: asyncio.Task[None] | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._expires = math.inf
        self._downloading = asyncio.Semaphore(MAX_DOWNLOADS)
        self._gone = SandboxGone("the sandbox was terminated")
        self._removed = False
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
        channel = self._channel
        served = channel is not None and channel.gone is None
        return self._ending is None and served and not _left_behind(channel)

    @property
    def why(self) -> str:
        """Why it ended, if it has."""
        return _LOOP_ENDED if self._ending is None and _left_behind(self._channel) else str(self._gone)

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
            why="" if self.alive else self.why,
            owner=self.record.label,
            age_s=max(0.0, time.time() - self.record.created),
            expires_in_s=max(0.0, self._expires - asyncio.get_running_loop().time()) if self.alive else 0.0,
            memory_bytes=memory,
            processes=processes,
        )

    def set_expiry(self, ttl_s: float) -> None:
        """Terminate it ``ttl_s`` seconds from now, and let its record say so."""
        self.arm(ttl_s)
        self.record = replace(self.record, expires=boot_time() + ttl_s)
        self._home.note(self)

    def arm(self, ttl_s: float) -> None:
        """Terminate it ``ttl_s`` seconds from now (inf: never)."""
        self._expires = asyncio.get_running_loop().time() + ttl_s
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if ttl_s != math.inf:
            self._expiry = asyncio.get_running_loop().call_later(ttl_s, self._expire)

    def _expire(self) -> None:
        self._gone = SandboxGone("the sandbox's time to live is over")
        self._end_behind()

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
        """End everything inside and remove every trace: idempotent, within three seconds.

        Raises:
            SandboxError: something could not be removed in that time; named in the message. That goes on
                behind, since what the kernel has to bury may be huge.
        """
        try:
            await asyncio.shield(self._begin_end())
        except SandboxError:
            asyncio.get_running_loop().call_later(_RETRY_S, self._end_behind)
            raise

    def _end_behind(self, failed: int = 0) -> None:
        """End it although nobody waits for that; again where it takes longer, as what is huge does."""

        def done(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and task.exception() is not None and failed < _MOST_RETRIES:
                loop.call_later(_RETRY_S * 2.0**failed, self._end_behind, failed + 1)

        loop = asyncio.get_running_loop()
        if not self._removed:
            self._begin_end().add_done_callback(done)

    def channel_ended(self) -> None:
        """The inside went away by itself, or broke the protocol: clean up."""
        if self._ending is None:
            if self._channel is not None and self._channel.gone is not None:
                self._gone = self._channel.gone
            self._end_behind()

    def death(self) -> SandboxGone:
        """Of what the inside has died that just went away by itself."""
        if oom_kills(self.groups):
            return OutOfMemory(
                "the sandbox ran out of memory: what ran in it left none of limits.memory_bytes"
            )
        return SandboxGone("the sandbox has ended")

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
            self._channel.end(self._gone)
        if self.quota is not None:  # to die takes time of a CPU, too
            self.quota.lift()
        ended = await self.process.end()
        left = await remove_group(self.groups)
        if ended and not left:
            self._removed = True
            self._home.ended(self)
        else:
            rest = [str(path) for path in left] + ([] if ended else [f"process {self.pid}"])
            raise SandboxError(f"sandbox {self.record.id} could not be removed whole: {', '.join(rest)}")

    def _live(self) -> Channel:
        if self._channel is None or self._ending is not None:
            raise again(self._gone)
        if self._channel.loop is not asyncio.get_running_loop():
            if _left_behind(self._channel):
                raise SandboxGone(_LOOP_ENDED)
            raise SandboxError(OTHER_LOOP)
        return self._channel


def _left_behind(channel: Channel | None) -> bool:
    """Whether the event loop that served it has ended."""
    return channel is not None and channel.loop is not None and channel.loop.is_closed()


def _consume(task: asyncio.Task[Any]) -> None:
    """A failure of the end is raised by terminate(); where nobody calls that, it is not 'never retrieved'."""
    if not task.cancelled():
        task.exception()


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None
