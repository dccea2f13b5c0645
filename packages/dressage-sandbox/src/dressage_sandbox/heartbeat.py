"""A lease that lasts for as long as its holder lives, and no longer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from .errors import InvalidSpec, SandboxGone
from .protocol import Sandbox

__all__ = ["kept_alive"]


@contextlib.asynccontextmanager
async def kept_alive(sandbox: Sandbox, ttl_s: float) -> AsyncIterator[Sandbox]:
    """Renew the sandbox three times per ``ttl_s`` while the block runs.

    If the holder hangs or dies, the sandbox ends at most ``ttl_s`` seconds later; a sandbox that has ended is
    told by the calls of the block, not here. A provider's other errors end the renewing and are raised at the
    block's end.
    """
    if not ttl_s > 0:
        raise InvalidSpec(f"ttl_s={ttl_s}: must be more than 0 seconds")
    await sandbox.renew(ttl_s)
    beating = asyncio.ensure_future(_beat(sandbox, ttl_s))
    try:
        yield sandbox
    finally:
        beating.cancel()
        await asyncio.wait({beating})  # not awaited itself: a cancellation that comes now is the caller's own
        if not beating.cancelled() and not isinstance(beating.exception(), SandboxGone):
            beating.result()


async def _beat(sandbox: Sandbox, ttl_s: float) -> None:
    while True:
        await asyncio.sleep(ttl_s / 3)
        await sandbox.renew(ttl_s)
