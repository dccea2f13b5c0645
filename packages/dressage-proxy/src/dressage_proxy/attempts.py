"""Replies in the making, and who waits for them: a retry joins the one that is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from dressage_proxy.dialects.base import ModelReply

Question = tuple[object, ...]
"""What was asked, and where: two requests with the same one are one."""


@dataclass(slots=True)
class Known:
    """What can be told of a reply before it is made."""

    prompt_tokens: int = 0
    """0 while the prompt is being encoded."""


@dataclass(slots=True, eq=False)
class Attempt:
    """A reply in the making, in the task of the request that came first, and how many clients wait for it (a
    retry joins the one in flight)."""

    known: Known
    ended: asyncio.Future[None]
    """Done once there is an outcome."""
    turn: Coroutine[Any, Any, ModelReply] | None
    """What makes it; None once it is being made."""
    _forget: Callable[[Attempt], None]
    waiters: int = 0
    delivered: bool = False
    abandoned: bool = False
    """It is being aborted: a retry does not join it any more, but starts afresh."""
    outcome: ModelReply | BaseException | None = None
    _maker: asyncio.Task[Any] | None = None

    async def make(self) -> None:
        """Make it, in the task that calls this; what became of it is the outcome. Raises CancelledError where
        that task is cancelled by another than :meth:`abandon`."""
        turn, self.turn = self.turn, None
        assert turn is not None, "it is being made"
        self._maker = maker = asyncio.current_task()
        assert maker is not None, "called outside of a task"
        try:
            self.outcome = await turn
        except asyncio.CancelledError as error:
            self.outcome = error
            if not self.abandoned:
                raise
            maker.uncancel()
        except Exception as error:  # noqa: BLE001 - raised again for each who waits
            self.outcome = error
        finally:
            self._forget(self)
            self.ended.set_result(None)

    def abandon(self) -> None:
        """Abort it, once: a second cancellation would cut off the account of what it sampled."""
        if self.turn is not None:  # who was to make it failed before that
            self.turn.close()
            self.turn = None
            self._forget(self)
            self.ended.set_result(None)
        if not self.abandoned and not self.ended.done() and self._maker is not None:
            self.abandoned = True
            self._maker.cancel()


@dataclass(slots=True)
class Attempts:
    """Every reply in the making of this process. Used from one event loop."""

    total: int = 0
    joinable: dict[Question, Attempt] = field(default_factory=dict)
    """What a retry may join, by what was asked."""
    running: dict[str, set[Attempt]] = field(default_factory=dict)
    """Every reply in the making, by session."""

    def find(self, question: Question) -> Attempt | None:
        """The one to join; None where a new one is to begin."""
        attempt = self.joinable.get(question)
        return None if attempt is None or attempt.abandoned else attempt

    def begin(
        self, session_id: str, question: Question, known: Known, turn: Coroutine[Any, Any, ModelReply]
    ) -> Attempt:
        """A reply to be made by the one who asks for it first."""

        def forget(attempt: Attempt) -> None:
            if self.joinable.get(question) is attempt:
                del self.joinable[question]
            self.total -= 1
            running = self.running[session_id]
            running.discard(attempt)
            if not running:
                del self.running[session_id]

        attempt = Attempt(known, asyncio.get_running_loop().create_future(), turn, forget)
        self.joinable[question] = attempt
        self.total += 1
        self.running.setdefault(session_id, set()).add(attempt)
        return attempt

    def of(self, session_id: str) -> int:
        """Replies in the making of a session."""
        return len(self.running.get(session_id, ()))

    async def end(self, session_id: str) -> None:
        """Abort every reply in the making of a session; each is recorded as undelivered."""
        await _ended(list(self.running.get(session_id, ())))

    async def end_all(self) -> int:
        """Abort every reply in the making; how many there were."""
        attempts = [attempt for running in self.running.values() for attempt in running]
        await _ended(attempts)
        return len(attempts)

    async def wait(self, timeout_s: float) -> bool:
        """Until all have ended; False where the time is over before."""
        ended = [attempt.ended for running in self.running.values() for attempt in running]
        if ended:
            await asyncio.wait(ended, timeout=timeout_s)
        return not self.total


async def _ended(attempts: Sequence[Attempt]) -> None:
    for attempt in attempts:
        attempt.abandon()
    if attempts:
        await asyncio.wait([attempt.ended for attempt in attempts])
