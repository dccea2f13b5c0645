"""Awaiting that keeps its promises under cancellation and time limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from dressage_paddock.errors import BrokenOffError, StageTimeoutError

T = TypeVar("T")


async def within(seconds: float, what: str, work: Awaitable[T]) -> T:
    """``work``'s result; :class:`StageTimeoutError` where OUR clock ran out.

    A ``TimeoutError`` of the work's own passes through, since it means something else. What would end more
    than the work (SystemExit, a test runner's own outcomes, the cancellation of a task that it waits for
    while nobody has cancelled us) is :class:`BrokenOffError`.
    """
    clock = asyncio.timeout(seconds)
    try:
        async with clock:
            return await work
    except TimeoutError as error:
        if clock.expired():
            raise StageTimeoutError(f"{what} took longer than {seconds:g} s") from error
        raise
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and _cancelled_from_outside():
            raise
        raise BrokenOffError(f"{type(error).__name__}: {error}".rstrip(": ")) from error


def _cancelled_from_outside() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def uninterrupted(task: asyncio.Task[T]) -> T:
    """Wait for ``task`` to the end whatever cancels us meanwhile; the cancellation is raised afterwards.

    The task must be bounded in time by itself.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # retrieved: the cancellation is what the caller gets
        raise cancelled
    return task.result()


async def settled(task: asyncio.Future[T]) -> T | None:
    """The result once it is there; None where the task failed or was cancelled."""
    await asyncio.wait({task})
    if task.cancelled() or task.exception() is not None:
        return None
    return task.result()
