"""Attempts of one call: again, after a random wait, where the other side was busy or broken, and not else."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from .config import E2BConfig

__all__ = ["attempts", "is_transient", "wait_s"]

T = TypeVar("T")


def is_transient(status: int | None) -> bool:
    """Whether an answer of this HTTP status may be another one next time: 429 and 5xx."""
    return status is not None and (status == 429 or 500 <= status < 600)


def wait_s(config: E2BConfig, failed: int, draw: float) -> float:
    """Seconds before the next attempt after ``failed`` (1 or more); ``draw`` is uniform in [0, 1).

    Between half of the exponential step and the whole of it, so that many callers do not come back at once.
    """
    step = min(config.backoff_s * 2.0 ** (failed - 1), config.backoff_max_s)
    return step * (0.5 + 0.5 * draw)


async def attempts(
    config: E2BConfig, call: Callable[[], Awaitable[T]], status_of: Callable[[BaseException], int | None]
) -> T:
    """``call``'s result; its last failure where every attempt was answered by 429 or 5xx."""
    failed = 0
    while True:
        try:
            return await call()
        except Exception as error:
            failed += 1
            if failed >= config.attempts or not is_transient(status_of(error)):
                raise
        await asyncio.sleep(wait_s(config, failed, random.random()))
