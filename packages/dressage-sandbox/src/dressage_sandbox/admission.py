"""Who may have a sandbox now, who waits, and who is told that there is no room."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math

from .errors import Full, InvalidSpec

__all__ = ["Admission"]

_FEW = 16


class Admission:
    """At most ``most`` leases at once; further ones wait, the earliest deadline first.

    Args:
        most: leases at the same time; None for no bound.
        most_waiting: how long the queue may become.
    """

    def __init__(self, most: int | None, most_waiting: int) -> None:
        if (most is not None and most < 1) or most_waiting < 0:
            raise InvalidSpec(f"most={most}, most_waiting={most_waiting}: at least 1, and at least 0")
        self._most = math.inf if most is None else most
        self._most_waiting = most_waiting
        self._numbers = itertools.count()
        self._queue: list[tuple[float, int, asyncio.Future[None]]] = []
        self.taken = 0

    @property
    def waiting(self) -> int:
        """How many wait. Not counted along: who is cancelled waits no more before it can say so itself."""
        return sum(not entry[2].done() for entry in self._queue)

    async def enter(self, wait_s: float) -> None:
        """Take a place, within ``wait_s`` seconds.

        Raises:
            Full: the queue is full, or the time passed in it.
        """
        if self.taken < self._most and not self.waiting:
            self.taken += 1
            return
        if not wait_s > 0:
            raise Full(f"all {self._most} sandboxes are in use")
        if self.waiting >= self._most_waiting:
            raise Full(
                f"all {self._most} sandboxes are in use, and {self._most_waiting} callers wait already"
            )
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        heapq.heappush(self._queue, (loop.time() + wait_s, next(self._numbers), turn))
        try:
            async with asyncio.timeout(wait_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # it came in the same moment: for the next one
                self.leave()
            else:
                turn.cancel()
                self._forget_who_left()
            if isinstance(error, TimeoutError):
                raise Full(f"all {self._most} sandboxes were in use for {wait_s:g} s") from None
            raise

    def leave(self) -> None:
        """Give a place back; the next in the queue has it."""
        while self._queue:
            _, _, turn = heapq.heappop(self._queue)
            if not turn.done():
                turn.set_result(None)
                return
        self.taken -= 1

    def _forget_who_left(self) -> None:
        """Keep the queue no longer than twice those who wait, and some."""
        if len(self._queue) > 2 * self.waiting + _FEW:
            self._queue = [entry for entry in self._queue if not entry[2].done()]
            heapq.heapify(self._queue)
