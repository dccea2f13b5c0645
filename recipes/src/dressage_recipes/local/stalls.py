"""Tells where a family's code holds up the event loop: every rollout's clock runs on meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection
from types import FrameType

STALL_S = 2.0
"""So long may the loop stand still before it is told."""


@contextlib.asynccontextmanager
async def watching(files: Collection[str], tell: Callable[[str], None]) -> AsyncIterator[None]:
    """Watch the running loop from a thread; ``tell`` gets a sentence for each line of ``files`` that blocks.

    Only what is seen in the loop's own stack is told: a machine that is merely busy is no finding.
    """
    if not files:
        yield
        return
    watch = _Watch(frozenset(files), tell)
    beat = asyncio.create_task(watch.beat())
    thread = threading.Thread(target=watch.look, name="dressage-stalls", daemon=True)
    thread.start()
    try:
        yield
    finally:
        watch.ended.set()
        beat.cancel()
        await asyncio.gather(beat, return_exceptions=True)


class _Watch:
    def __init__(self, files: frozenset[str], tell: Callable[[str], None]) -> None:
        self.ended = threading.Event()
        self._files = files
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._seen = time.monotonic()
        self._told = set[tuple[str, int]]()

    async def beat(self) -> None:
        """In the loop: say that it turns."""
        while True:
            self._seen = time.monotonic()
            await asyncio.sleep(STALL_S / 8)

    def look(self) -> None:
        """In a thread: see whether it does, and where not."""
        while not self.ended.wait(STALL_S / 4):
            if time.monotonic() - self._seen < STALL_S:
                continue
            frame = self._own(sys._current_frames().get(self._thread))
            if frame is None or (place := (frame.f_code.co_filename, frame.f_lineno)) in self._told:
                continue
            self._told.add(place)
            text = (
                f"{place[0]}:{place[1]} ({frame.f_code.co_name}) holds up every rollout for more than "
                f"{STALL_S:g} s; await what takes long, or use `await asyncio.to_thread(...)`"
            )
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                self._loop.call_soon_threadsafe(self._tell, text)

    def _own(self, frame: FrameType | None) -> FrameType | None:
        """The innermost frame of the files."""
        while frame is not None and frame.f_code.co_filename not in self._files:
            frame = frame.f_back
        return frame
