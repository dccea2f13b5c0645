"""Pause and resume at token boundaries, over all calls that are in flight.

A pause closes the gate (for one session or for all), aborts the engine calls of its scope and waits until
each has ended: by then its partial tokens are with the turn that asked for them, which waits at the gate and
goes on from prompt + partial once resumed. A call that finished while its abort was under way is finished.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Protocol

from dressage_proxy.gate import GateFile, GateState
from dressage_proxy.records import record

_REPEAT_ABORT_S = 0.25


@dataclass(frozen=True, slots=True)
class PauseResult:
    """What a pause reached: ``quiesced`` only if nothing of its scope is in flight. ``preempted`` calls it
    aborted; ``waiting`` turns were held at the gate before."""

    quiesced: bool
    preempted: int
    waiting: int
    spared: int = 0
    """Calls that were left to end by themselves: their sessions have no switch of versions left."""


class Aborter(Protocol):
    """Reaches engines apart from the data plane's connections."""

    async def abort(self, engine: str, rid: str) -> bool:
        """Ask an engine to abort a call. False when it did not take the request."""
        ...


@record
class _Call:
    session_id: str
    engine: str
    spared: bool = False


class _Signal:
    """Wakes who waits for it now. Sent without a pause in between, so that a cancelled task can send it."""

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Until it is sent; look again then whether what was waited for is so."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def send(self) -> None:
        """Wake them."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class Controller:
    """The gate that every engine call passes. Used from one event loop."""

    def __init__(self, engines: Aborter, file: GateFile | None = None) -> None:
        """What is paused, and the version, are kept in ``file``, where there is one."""
        self._engines = engines
        self._file = file
        self._state = GateState()
        self._calls: dict[str, _Call] = {}
        self._aborting: dict[str, asyncio.Task[bool]] = {}
        self._waiting: dict[str, int] = {}
        self._opened = _Signal()
        self._ended = _Signal()

    @property
    def state(self) -> GateState:
        """What is paused, and the weight version last announced by ``resume``, or -1."""
        return self._state

    def recover(self, sessions: Container[str], whole: GateState | None = None) -> None:
        """Go on as it was left, with those of the paused sessions that are still there; one process of
        several goes by what they were told as a ``whole``. Raises ConfigError for a file that is damaged."""
        if self._file is not None:
            self._state = self._file.read().only(sessions)
        if whole is not None:
            self._state = self._state.within(whole)

    @property
    def in_flight(self) -> int:
        """Engine calls under way."""
        return len(self._calls)

    @property
    def waiting(self) -> int:
        """Turns held at the gate."""
        return sum(self._waiting.values())

    def holds(self, session_id: str) -> bool:
        """Whether a call of this session must wait now."""
        return self._state.paused or session_id in self._state.sessions

    async def enter(self, session_id: str, rid: str, engine: str, *, spared: bool = False) -> int:
        """Pass the gate and be in flight until :meth:`leave`; the version known at dispatch (-1: unknown). A
        pause waits for a ``spared`` call, and does not abort it unless it is told to."""
        if self.holds(session_id):
            await self._held(session_id)
        self._calls[rid] = _Call(session_id, engine, spared)
        return self._state.version

    async def _held(self, session_id: str) -> None:
        self._waiting[session_id] = self._waiting.get(session_id, 0) + 1
        try:
            while self.holds(session_id):
                await self._opened.wait()
        finally:
            self._waiting[session_id] -= 1
            if not self._waiting[session_id]:
                del self._waiting[session_id]

    def leave(self, rid: str) -> None:
        """A call ended."""
        del self._calls[rid]
        self._ended.send()

    async def pause(self, session_id: str | None, timeout_s: float, *, force: bool = False) -> PauseResult:
        """Close the gate for one session or all, abort what runs there (``force``: spared calls too), and
        wait for quiescence. A restart finds the gate as it was left. Raises OSError where that cannot be
        noted: then nothing is paused."""
        self._keep(self._state.closed(session_id))
        targets = [call for call in self._scope(session_id).values() if force or not call.spared]
        spared = len(self._scope(session_id)) - len(targets)
        waiting = self.waiting if session_id is None else self._waiting.get(session_id, 0)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while scope := self._scope(session_id):
            for rid, call in scope.items():
                if force or not call.spared:
                    self._abort(call.engine, rid)
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 or await self._quiet(session_id, min(left, _REPEAT_ABORT_S)):
                break
            # An abort that overtook its own request found nothing to abort: say it again.
        quiesced = self._closed(session_id) and not self._scope(session_id)
        return PauseResult(quiesced, len(targets), waiting, spared)

    def resume(self, version: int) -> None:
        """Open the gate; calls dispatched from now on are labelled so where the engine gives none.

        Raises ConflictError for a version that is lower than the last, and OSError where it cannot be noted:
        then everything stays paused.
        """
        self._keep(self._state.opened(version))
        self._opened.send()
        self._ended.send()  # a pause that still waits has nothing to wait for

    def _keep(self, state: GateState) -> None:
        if self._file is not None and state != self._state:
            self._file.write(state)
        self._state = state

    def _abort(self, engine: str, rid: str) -> None:
        """Ask an engine to abort, unless it is being asked. Who waits for the call's end does not wait for
        this: an engine that hangs would keep a pause beyond its time."""
        if rid not in self._aborting:
            asking = asyncio.create_task(self._engines.abort(engine, rid))
            self._aborting[rid] = asking
            asking.add_done_callback(lambda _: self._aborting.pop(rid))

    def forget(self, session_id: str) -> None:
        """Drop a session's own pause. A restart does so by itself."""
        if session_id in self._state.sessions:
            self._state = replace(self._state, sessions=self._state.sessions - {session_id})

    def _closed(self, session_id: str | None) -> bool:
        """Whether the gate is closed for one session, or for all; a resume may have come meanwhile."""
        return self._state.paused if session_id is None else self.holds(session_id)

    def _scope(self, session_id: str | None) -> dict[str, _Call]:
        return {
            rid: call
            for rid, call in self._calls.items()
            if session_id is None or call.session_id == session_id
        }

    async def _quiet(self, session_id: str | None, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while self._closed(session_id) and self._scope(session_id):
                    await self._ended.wait()
        except TimeoutError:
            return False
        return True
