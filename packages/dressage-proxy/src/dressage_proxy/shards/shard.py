"""One shard's process as its parent sees it: started, started again, given connections, and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Sequence

from dressage_proxy.errors import ConfigError
from dressage_proxy.shards.worker import AT_ONCE, STATE, STOP

_STDERR = 2
_BACKOFF_S = 0.2
_BACKOFF_CAP_S = 10.0
_STEADY_S = 30.0
"""A shard that ran so long starts again at once."""
_HANDOVER_S = 20.0
_CHANNEL_BYTES = 64
_STOP_S = 30.0
"""What a shard may take to end, on top of its drain."""
log = logging.getLogger("dressage.proxy")


class Shard:
    """One child process, started again whenever it ends."""

    def __init__(
        self, index: int, command: Sequence[str], environment: dict[str, str], state: Callable[[], str]
    ) -> None:
        self.index = index
        self._command = command
        self._environment = environment
        self._state = state
        self._channel: socket.socket | None = None
        self._up = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def up(self) -> bool:
        """Whether it takes connections now."""
        return self._up.is_set()

    async def wait_up(self) -> None:
        """Until it takes connections."""
        await self._up.wait()

    async def hand_over(self, connection: socket.socket) -> None:
        """Give a connection to the process, once it is there. Raises TimeoutError or OSError."""
        async with asyncio.timeout(_HANDOVER_S):
            while True:
                if self._stopping and self.pid is None:
                    raise ConnectionAbortedError(f"shard {self.index} has ended")
                await self._up.wait()
                assert self._channel is not None
                try:
                    socket.send_fds(self._channel, [b"c"], [connection.fileno()])
                    return
                except BlockingIOError:
                    await asyncio.sleep(0.005)
                except OSError:  # it ended just now
                    await asyncio.sleep(0.05)

    async def keep(self) -> None:
        """Run it for ever. Raises ConfigError when the first start fails: its own words are on stderr."""
        failures = 0
        first = True
        loop = asyncio.get_running_loop()
        while not self._stopping:
            started = loop.time()
            code = await self._run(first)
            if self._is_stopping():
                break
            first = False
            failures = 0 if loop.time() - started > _STEADY_S else failures + 1
            delay = 0.0 if failures <= 1 else min(_BACKOFF_CAP_S, _BACKOFF_S * 2 ** (failures - 2))
            log.error("shard %d ended with %s: it starts again in %.1f s", self.index, code, delay)
            await asyncio.sleep(delay)  # it may be stopped meanwhile

    def _is_stopping(self) -> bool:
        return self._stopping

    async def _run(self, first: bool) -> object:
        """Start it and wait for its end; what it ended with. Raises ConfigError where it never started."""
        try:
            ready = await self._start()
        except OSError as error:  # such as no memory for one more process: there may be some later
            if first:
                raise ConfigError(f"shard {self.index} cannot be started: {error}") from error
            return error
        assert self._process is not None
        code = await self._process.wait()
        if not ready and first:
            raise ConfigError(f"shard {self.index} did not start: see its message above")
        self._up.clear()
        if self._channel is not None:
            self._channel.close()
        return code

    async def _start(self) -> bool:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._channel = ours
        ready = False
        try:
            with theirs:
                self._process = await self._spawned(theirs.fileno())
            ready = await self._ready(ours)
        finally:
            if not ready:
                ours.close()
        if ready:
            self._up.set()
        return ready

    async def _spawned(self, channel: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._command,
            *("--shard-index", str(self.index), "--shard-channel", str(channel)),
            stdout=_STDERR,  # what a hook or a library prints there; the ready line is this process's own
            pass_fds=(channel,),
            env=self._environment,
            start_new_session=True,  # a Ctrl-C is the parent's to handle
        )

    async def _ready(self, channel: socket.socket) -> bool:
        """Whether it takes connections at last; until then it is told what it asks."""
        loop = asyncio.get_running_loop()
        try:
            while said := await loop.sock_recv(channel, _CHANNEL_BYTES):
                if said != STATE:
                    return True
                await loop.sock_sendall(channel, self._state().encode())
        except OSError:  # it ended with something unread
            pass
        return False

    async def stop(self, drain_s: float) -> None:
        """Ask it to stop, and SIGKILL if it takes longer than its drain may. Until it has ended it goes on to
        take connections: they are told to come again."""
        self._stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        if not (self.up and self._tell(STOP)):  # it only begins
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        try:
            async with asyncio.timeout(drain_s + _STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    def hurry(self) -> None:
        """Let it not wait for what it does."""
        self._tell(AT_ONCE)

    def _tell(self, said: bytes) -> bool:
        """Whether it will read this. False where it has ended, or has too much to read."""
        if self._channel is None:
            return False
        try:
            self._channel.send(said)
        except OSError:
            return False
        return True
