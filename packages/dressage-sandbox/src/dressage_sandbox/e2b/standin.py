"""A stand-in for E2B, for tests of whatever uses its SDK: the control API and the agent of each machine.

::

    async with E2BStandIn(BubblewrapProvider()) as cloud:
        provider = E2BProvider(cloud.config())

It speaks what the SDK speaks (REST, and Connect for processes) over HTTP on this machine's loopback, and runs
commands for real: a machine is a sandbox of another provider. Needs the SDK and uvicorn
(``pip install dressage-sandbox[e2b-standin]``).

As over there: a command whose stream has a deadline is killed when that is over, the leader alone; a
machine ends when its time-out is over; one that has ended, or is paused, answers 502. Not as over there:
there is no root, no memory snapshot, and no egress at all.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from ..protocol import SandboxProvider
from ._standin_account import Account, Fault, Machine

__all__ = ["E2BStandIn", "Fault", "Machine"]


class E2BStandIn(Account):
    """An account and its machines, served while the block lasts.

    Args:
        machines: makes what stands for a machine; closed with the stand-in.
        second: real seconds that count as one, for deadlines of commands and lifetimes of machines.
    """

    def __init__(self, machines: SandboxProvider, *, second: float = 1.0) -> None:
        super().__init__(machines, second=second)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        from ._standin_http import serve

        self.url = await self._stack.enter_async_context(serve(self))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.end_all()
        finally:
            await self._stack.aclose()
            await self._provider.close()
