"""Commands as the host sees them: the answer of one that ended, and one that runs on as a service."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from .channel import Call, Channel
from .errors import InvalidSpec
from .inside import wire
from .protocol import RunResult
from .requests import numbers_of

__all__ = ["BubblewrapService", "result_of"]

_STOP_GUARD_S = 5.0


def result_of(call: Call, last: bytes) -> RunResult:
    """The result that a call's last frame and its output frames tell."""
    status, timed_out, out_bytes, err_bytes, micros = numbers_of(last, 5)
    return RunResult(
        exit_code=status,
        stdout=call.joined(wire.OUT),
        stderr=call.joined(wire.ERR),
        stdout_bytes=out_bytes,
        stderr_bytes=err_bytes,
        timed_out=bool(timed_out),
        duration_s=micros / 1e6,
    )


class BubblewrapService:
    """See ``protocol.Service``. Made by ``BubblewrapSandbox.start``."""

    def __init__(self, channel: Channel, call: Call) -> None:
        self._channel = channel
        self._call = call
        call.done.add_done_callback(self._ended)

    @property
    def id(self) -> str:
        """Unique in its sandbox."""
        return f"service-{self._call.number}"

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return not self._call.done.done()

    async def wait(self, timeout_s: float | None = None) -> RunResult:
        """How it ended.

        Raises:
            TimeoutError: it still runs after ``timeout_s``.
            SandboxGone: the sandbox ended first.
        """
        if timeout_s is not None and math.isnan(timeout_s):
            raise InvalidSpec("timeout_s=nan: a number of seconds, or None")
        async with asyncio.timeout(timeout_s):
            last = await asyncio.shield(self._call.done)
        return result_of(self._call, last)

    async def stop(self, *, grace_s: float = 2.0) -> RunResult:
        """SIGTERM, after ``grace_s`` seconds SIGKILL, for its whole tree. Idempotent.

        Raises:
            SandboxGone: the sandbox ended first.
        """
        if not 0 <= grace_s < math.inf:
            raise InvalidSpec(f"grace_s={grace_s}: must not be negative, and finite")
        if self.running:
            self._channel.send(wire.STOP, self._call, b"%d" % round(grace_s * 1000))
            self._channel.hurry(self._call)
        return await self.wait(grace_s + _STOP_GUARD_S)

    def _ended(self, done: asyncio.Future[Any]) -> None:
        self._channel.forget(self._call)
        if not done.cancelled():
            done.exception()  # told by wait(), which nobody has to call
