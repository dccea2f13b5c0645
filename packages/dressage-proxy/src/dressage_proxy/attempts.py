"""Replies in the making, and who waits for them: a retry joins the one that is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
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
    """A reply in the making, and how many clients wait for it (a retry joins the one in flight)."""

    task: asyncio.Task[ModelReply]
    known: Known
    waiters: int = 0
    delivered: bool = False
    abandoned: bool = False
    """It is being aborted: a retry does not join it any more, but starts afresh."""

    def abandon(self) -> None:
        """Abort it, once: a second cancellation would cut off the account of what it sampled."""
        if not self.abandoned and not self.task.done():
            self.abandoned = True
            self.task.cancel()


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
        return None if attempt is None or attempt.abandoned or attempt.task.done() else attempt

    def begin(
        self, session_id: str, question: Question, known: Known, turn: Coroutine[Any, Any, ModelReply]
    ) -> Attempt:
        """Make a reply."""
        attempt = Attempt(asyncio.create_task(turn), known)
        self.joinable[question] = attempt
        self.total += 1
        self.running.setdefault(session_id, set()).add(attempt)
        attempt.task.add_done_callback(self._ended(session_id, question, attempt))
        return attempt

    def _ended(
        self, session_id: str, question: Question, attempt: Attempt
    ) -> Callable[[asyncio.Task[ModelReply]], None]:
        def forget(task: asyncio.Task[ModelReply]) -> None:
            if self.joinable.get(question) is attempt:
                del self.joinable[question]
            self.total -= 1
            running = self.running[session_id]
            running.discard(attempt)
            if not running:
                del self.running[session_id]
            if not task.cancelled():
                task.exception()  # retrieved: each waiter was given it

        return forget

    def of(self, session_id: str) -> int:
        """Replies in the making of a session."""
        return len(self.running.get(session_id, ()))

    async def end(self, session_id: str) -> None:
        """Abort every reply in the making of a session; each is recorded as undelivered."""
        attempts = list(self.running.get(session_id, ()))
        for attempt in attempts:
            attempt.abandon()
        if attempts:
            await asyncio.wait([attempt.task for attempt in attempts])

    async def wait(self, timeout_s: float) -> bool:
        """Until all have ended; False where the time is over before."""
        tasks = [attempt.task for running in self.running.values() for attempt in running]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        return not self.total
