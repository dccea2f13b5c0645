"""The host's end of the control socket: calls in flight, their frames, and the end of them all."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from .errors import SandboxGone, again, file_error
from .inside import wire
from .protocol import OnOutput
from .quota import Quota

__all__ = ["Call", "Channel"]

_LAST = (wire.EXIT, wire.OK)
_LONGEST_FRAME = 1 << 20


@dataclass(eq=False, slots=True)
class Call:
    """One request: what came back so far, at most ``cap`` bytes of it."""

    number: int
    cap: int
    done: asyncio.Future[bytes]
    parts: dict[int, list[bytes]] = field(default_factory=dict)
    size: int = 0
    on_output: OnOutput | None = None
    started: asyncio.Future[None] | None = None
    """Resolved when the agent says that a service runs."""
    hurried: bool = False
    """Whether the sandbox's CPU limit is lifted for it."""

    def joined(self, kind: int) -> bytes:
        """All bytes that came in frames of this kind."""
        return b"".join(self.parts.get(kind, ()))


class Channel(asyncio.Protocol):
    """Multiplexes calls over one socket. ``on_end`` is called once, when the inside is gone; where it went by
    itself, ``death`` tells of what. ``quota`` is lifted for calls that wait for process 1 alone."""

    def __init__(
        self,
        on_end: Callable[[], None],
        death: Callable[[], SandboxGone] | None = None,
        quota: Quota | None = None,
    ) -> None:
        self._on_end = on_end
        self._death = death or (lambda: SandboxGone("the sandbox has ended"))
        self._quota = quota
        self._numbers = itertools.count(1)
        self._calls: dict[int, Call] = {}
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        """The one that serves it, once it is open."""
        self._writable = asyncio.Event()
        self._writable.set()
        self.received = 0
        self.gone: SandboxGone | None = None

    @classmethod
    async def open(
        cls,
        sock: socket.socket,
        on_end: Callable[[], None],
        death: Callable[[], SandboxGone] | None = None,
        quota: Quota | None = None,
    ) -> Channel:
        """A channel over a connected socket, which it owns from here on."""
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_connection(lambda: cls(on_end, death, quota), sock=sock)
        return channel

    # -- asyncio.Protocol -------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # Not checked: other event loops' transports (uvloop's) do not derive from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self.loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        """Hand each whole frame to its call; a broken one ends the channel."""
        self.received += len(data)
        self._buffer += data
        try:
            for kind, number, body in wire.split(self._buffer, _LONGEST_FRAME):
                self._take(kind, number, body)
        except ValueError as error:
            self.end(SandboxGone(f"the sandbox broke the protocol: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """The inside has ended."""
        self.end(self._death())

    def pause_writing(self) -> None:
        """The agent is behind."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The agent has caught up."""
        self._writable.set()

    # -- calls ------------------------------------------------------------------------------------------
    def start(self, cap: int, *, command: bool = False) -> Call:
        """A new call that accepts at most ``cap`` bytes in answer; a ``command`` takes its own time.

        Raises:
            SandboxGone: the channel has ended.
        """
        if self.gone is not None:
            raise again(self.gone)
        call = Call(next(self._numbers), cap, asyncio.get_running_loop().create_future())
        self._calls[call.number] = call
        if not command:
            self.hurry(call)
        return call

    def hurry(self, call: Call) -> None:
        """It waits for process 1 alone: until it is answered nothing that runs inside is to hold that up."""
        if self._quota is not None and call.number in self._calls and not call.hurried:
            call.hurried = True
            self._quota.lift()

    def send(self, kind: int, call: Call, body: bytes = b"") -> None:
        """Queue one frame."""
        if self._transport is not None and self.gone is None:
            self._transport.write(wire.frame(kind, call.number, body))

    async def stream(self, kind: int, call: Call, data: bytes) -> None:
        """Send ``data`` in pieces, no faster than the agent takes them."""
        view = memoryview(data).cast("B")
        for at in range(0, len(view), wire.CHUNK_BYTES):
            if call.done.done():  # it failed already: the rest would be dropped inside
                return
            self.send(kind, call, bytes(view[at : at + wire.CHUNK_BYTES]))
            await self._writable.wait()

    async def answer(self, call: Call, abort: int) -> bytes:
        """The body of the call's last frame. A caller that is cancelled sends ``abort``.

        Raises:
            SandboxGone: the inside ended first.
            SandboxFileError: the inside answered with an errno.
        """
        try:
            return await call.done
        except asyncio.CancelledError:
            self.send(abort, call)
            raise
        finally:
            self.forget(call)

    def forget(self, call: Call) -> None:
        """Frames of this call that still come are dropped."""
        gone = self._calls.pop(call.number, None)
        if gone is not None and gone.hurried and self._quota is not None:
            self._quota.hold()

    def end(self, why: SandboxGone) -> None:
        """Fail every call and close. Idempotent."""
        if self.gone is not None:
            return
        self.gone = why
        if self.loop is not None and self.loop.is_closed():  # nobody waits in it any more
            self._calls.clear()
        elif self._transport is not None:
            self._transport.abort()
        self._writable.set()
        for call in self._calls.values():
            if not call.done.done():
                call.done.set_exception(again(why))
                call.done.exception()  # seen: a cancelled caller never asks again
        self._calls.clear()
        self._on_end()

    def _take(self, kind: int, number: int, body: bytes) -> None:
        call = self._calls.get(number)
        if call is None or call.done.done():
            return
        if kind == wire.FAIL:
            fields = wire.unpack(body)
            if len(fields) != 2 or not fields[0].isdigit():
                raise ValueError("a failure without an errno")
            call.done.set_exception(file_error(int(fields[0]), fields[1].decode("utf-8", "surrogateescape")))
            call.done.exception()
        elif kind in _LAST:
            call.done.set_result(body)
        elif kind in (wire.LIVE_OUT, wire.LIVE_ERR):
            self._hand_on(call, kind, body)
        elif kind == wire.STARTED:
            if call.started is not None and not call.started.done():
                call.started.set_result(None)
        else:
            call.size += len(body)
            if call.size > call.cap:
                raise ValueError(f"an answer of more than {call.cap} bytes")
            call.parts.setdefault(kind, []).append(body)

    def _hand_on(self, call: Call, kind: int, body: bytes) -> None:
        if call.on_output is None:
            raise ValueError("live output that nobody asked for")
        try:
            call.on_output("stdout" if kind == wire.LIVE_OUT else "stderr", body)
        except Exception as error:  # noqa: BLE001 - the caller's own: it ends the caller's call, and no other
            call.done.set_exception(error)
            call.done.exception()
            self.send(wire.CANCEL, call)
