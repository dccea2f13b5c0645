"""Waiting for a remote place without being held up by one that has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ..errors import SandboxGone

__all__ = ["Life"]

T = TypeVar("T")


class Life:
    """Whether a sandbox lives, and what is under way. ``on_lost`` is told that it has gone by itself."""

    def __init__(self, on_lost: Callable[[str], None]) -> None:
        self.why = ""
        self.asleep = False
        """Paused: nothing answers, and nothing is lost."""
        self.naps = 0
        """How often it was paused: a call that failed meanwhile may be made again."""
        self._on_lost = on_lost
        self._over = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._over.is_set()

    def sleeps(self) -> None:
        """It is being paused."""
        self.asleep = True
        self.naps += 1

    def end(self, why: str) -> None:
        """It ended; the first reason stands."""
        if not self.over:
            self.why = why
            self._over.set()

    def check(self) -> None:
        """Raise ``SandboxGone`` once it has ended."""
        if self.over:
            raise SandboxGone(self.why)

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Work in a task that is kept until it is done; its failure is told to who waits, if anyone does."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    async def either(self, task: asyncio.Task[Any], timeout_s: float | None) -> bool:
        """Wait for the task or the end. Whether the task is done; raises ``SandboxGone`` at the end."""
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({task, over}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
        if not task.done() or task.cancelled():
            self.check()
        return task.done()

    async def result(self, work: Coroutine[Any, Any, T]) -> T:
        """The work's result, or ``SandboxGone`` as soon as it has ended."""
        task = self.begin(work)
        try:
            await self.either(task, None)
        finally:
            task.cancel()
        return self.outcome(task)

    def outcome(self, task: asyncio.Task[T]) -> T:
        """The result of a task that is done; a sandbox that it found gone has ended for every call."""
        try:
            return task.result()
        except SandboxGone as error:
            if not self.over:
                self._on_lost(str(error))
            raise

    async def drained(self) -> None:
        """Cancel what is under way and wait until it has let go."""
        tasks = {task for task in self._tasks if task is not asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5.0)
