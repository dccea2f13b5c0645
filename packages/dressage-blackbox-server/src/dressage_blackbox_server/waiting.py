"""Waiting for a clean-up to the end, whatever cancels us meanwhile."""

from __future__ import annotations

import asyncio


async def uninterrupted(task: asyncio.Task[None]) -> None:
    """Wait for the end of ``task``; a cancellation that came meanwhile is raised afterwards.

    Raises what the task raised where nobody cancelled. The task must be bounded in time by itself.
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
    if not task.cancelled():
        task.result()
