"""The state machine of one agent's session: turns that run once, however often they are asked for."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

from dressage_blackbox_server.adapter import AgentAdapter
from dressage_blackbox_server.drive import check_prompt, run_turn
from dressage_blackbox_server.errors import (
    ExecutorError,
    LaunchError,
    RequestError,
    SessionClosedError,
    SessionLostError,
    TurnActiveError,
    TurnMismatchError,
    UnknownTurnError,
)
from dressage_blackbox_server.executor import Executor
from dressage_blackbox_server.journal import Journal, JournalRecord, MemoryJournal
from dressage_blackbox_server.model import (
    SessionConfig,
    SessionState,
    TurnOutcome,
    TurnRecord,
    TurnState,
)
from dressage_blackbox_server.waiting import uninterrupted


class AgentSession:
    """One agent's session.

    A turn has an id that its caller chooses. The same id again gives the same turn: joined while it runs,
    its recorded result afterwards; the program runs once. A second active turn is refused, and so is an id
    with another prompt. Whoever waits may go away and come back: only ``cancel`` and ``close`` end a turn.

    ``slots`` bounds how many turns run at once (over the sessions that share it); a turn that waits for one
    is queued. ``turns`` are those of an earlier process (see :func:`restored_turns`).
    """

    def __init__(
        self,
        session_id: str,
        config: SessionConfig,
        adapter: AgentAdapter,
        executor: Executor,
        *,
        journal: Journal | None = None,
        slots: asyncio.Semaphore | None = None,
        turns: Sequence[TurnRecord] = (),
    ) -> None:
        self.session_id = session_id
        self.config = config
        self._adapter = adapter
        self._executor = executor
        self._journal = journal or MemoryJournal()
        self._slots = slots or asyncio.Semaphore(1)
        self._turns: dict[str, TurnRecord] = {turn.turn_id: turn for turn in turns}
        self._active: asyncio.Task[None] | None = None
        self._active_id = ""
        self._closed = False

    @property
    def state(self) -> SessionState:
        """Where the session is."""
        if self._closed:
            return SessionState.CLOSED
        if any(t.state is TurnState.UNKNOWN for t in self._turns.values()):
            return SessionState.LOST
        return SessionState.BUSY if self._active is not None else SessionState.READY

    @property
    def turns(self) -> tuple[TurnRecord, ...]:
        """Every turn, in the order in which they were accepted."""
        return tuple(self._turns.values())

    def get(self, turn_id: str) -> TurnRecord:
        """The turn as it stands. Raises :class:`UnknownTurnError`."""
        try:
            return self._turns[turn_id]
        except KeyError:
            raise UnknownTurnError(f"session {self.session_id} has no turn {turn_id!r}") from None

    def submit(self, turn_id: str, prompt: str) -> TurnRecord:
        """Accept a turn, or find the one of that id, without waiting for it.

        Raises :class:`TurnMismatchError`, :class:`TurnActiveError`, :class:`SessionLostError`,
        :class:`SessionClosedError`, :class:`RequestError` or :class:`JournalError`; the turn is then not
        accepted.
        """
        digest = _digest(prompt)
        known = self._turns.get(turn_id)
        if known is not None:
            if known.prompt_digest != digest:
                raise TurnMismatchError(f"turn {turn_id!r} had another prompt: use a new turn id")
            return known
        self._refuse_if_not_ready()
        check_prompt(self._adapter, prompt)
        turn = TurnRecord(
            turn_id=turn_id, index=len(self._turns), prompt_digest=digest, state=TurnState.QUEUED
        )
        self._put(turn)
        self._active_id = turn_id
        self._active = asyncio.create_task(self._drive(turn, prompt))
        return turn

    def _refuse_if_not_ready(self) -> None:
        state = self.state
        if state is SessionState.CLOSED:
            raise SessionClosedError(f"session {self.session_id} has ended")
        if state is SessionState.LOST:
            raise SessionLostError(
                f"a turn of session {self.session_id} was cut by a restart and what it did is not known: "
                "abort the sample and open a new session"
            )
        if state is SessionState.BUSY:
            raise TurnActiveError(f"turn {self._active_id!r} of session {self.session_id} is active")

    async def wait(self, turn_id: str, timeout_s: float | None = None) -> TurnRecord:
        """The turn once it is final, or as it stands after ``timeout_s``. Raises UnknownTurnError."""
        turn = self.get(turn_id)
        if not turn.state.final and self._active is not None:
            await asyncio.wait({self._active}, timeout=timeout_s)
        return self.get(turn_id)

    async def turn(self, turn_id: str, prompt: str) -> TurnRecord:
        """Submit, or join, and wait for the end. Raises as :meth:`submit` does."""
        self.submit(turn_id, prompt)
        return await self.wait(turn_id)

    async def cancel(self, turn_id: str) -> TurnRecord:
        """End the turn if it is not final yet, with its program's whole tree. Gives it as it then stands."""
        if not self.get(turn_id).state.final:
            await self._end_active()
        return self.get(turn_id)

    async def close(self) -> None:
        """End whatever runs; no turn is taken any more. Idempotent."""
        self._closed = True
        await self._end_active()

    async def _end_active(self) -> None:
        if self._active is None:
            return
        task, turn_id = self._active, self._active_id
        task.cancel()
        await uninterrupted(task)
        if not self.get(turn_id).state.final:  # cancelled before its task took a first step
            self._conclude(_ended(self.get(turn_id), TurnState.CANCELLED, TurnOutcome.CANCELLED))

    async def __aenter__(self) -> AgentSession:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _drive(self, turn: TurnRecord, prompt: str) -> None:
        try:
            final = await self._run(turn, prompt)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            asked = task is not None and task.cancelling() > 0
            told = "" if asked else "the executor was cancelled by itself"
            final = self._failed(turn, TurnOutcome.CANCELLED if asked else TurnOutcome.INFRASTRUCTURE, told)
        except LaunchError as error:
            final = self._failed(turn, TurnOutcome.LAUNCH_FAILED, str(error))
        except Exception as error:  # noqa: BLE001 - whatever an executor raises is recorded, not dropped
            name = "" if isinstance(error, ExecutorError) else f"{type(error).__name__}: "
            final = self._failed(turn, TurnOutcome.INFRASTRUCTURE, f"{name}{error}")
        self._conclude(final)

    def _failed(self, turn: TurnRecord, outcome: TurnOutcome, detail: str) -> TurnRecord:
        state = TurnState.CANCELLED if outcome is TurnOutcome.CANCELLED else TurnState.FAILED
        return _ended(self.get(turn.turn_id), state, outcome, detail)

    def _conclude(self, final: TurnRecord) -> None:
        self._active = None
        self._active_id = ""
        try:
            self._put(final)
        except OSError as error:
            # A result that a restart would not know is not a result.
            detail = f"the turn ended, but: {error}"
            self._turns[final.turn_id] = self._failed(final, TurnOutcome.INFRASTRUCTURE, detail)

    async def _run(self, turn: TurnRecord, prompt: str) -> TurnRecord:
        async with self._slots:
            # Written down before the program starts: a restart that finds "queued" knows it never ran.
            running = turn.model_copy(update={"state": TurnState.INFLIGHT, "began": True})
            earlier = tuple(t for t in self._turns.values() if _ran(t))
            self._put(running)
            return await run_turn(self._adapter, self.config, self._executor, running, prompt, earlier)

    def _put(self, turn: TurnRecord) -> None:
        self._journal.append(self.session_id, JournalRecord(turn=turn))
        self._turns[turn.turn_id] = turn


def restored_turns(turns: Sequence[TurnRecord]) -> tuple[TurnRecord, ...]:
    """Turns of an earlier process as they stand after a restart, from journal records in order.

    One that was running is unknown, for good. One that was queued never began (``inflight`` is journalled
    before the program starts), so it is cancelled.
    """
    last: dict[str, TurnRecord] = {}
    for turn in turns:
        last[turn.turn_id] = turn
    return tuple(_restored(turn) for turn in last.values())


def _ran(turn: TurnRecord) -> bool:
    """Whether its program may have begun a conversation that the next turn goes on with."""
    return turn.began and turn.outcome is not TurnOutcome.LAUNCH_FAILED


def _restored(turn: TurnRecord) -> TurnRecord:
    if turn.state is TurnState.QUEUED:
        return _ended(turn, TurnState.CANCELLED, TurnOutcome.CANCELLED, "a restart came before it began")
    if turn.state is TurnState.INFLIGHT:
        return _ended(turn, TurnState.UNKNOWN, TurnOutcome.UNKNOWN, "a restart came while it ran")
    return turn


def _ended(turn: TurnRecord, state: TurnState, outcome: TurnOutcome, detail: str = "") -> TurnRecord:
    return turn.model_copy(update={"state": state, "outcome": outcome, "detail": detail})


def _digest(prompt: str) -> str:
    try:
        return hashlib.blake2b(prompt.encode(), digest_size=16).hexdigest()
    except UnicodeEncodeError as error:
        raise RequestError(f"prompt holds a lone surrogate at {error.start}: give valid Unicode") from error
