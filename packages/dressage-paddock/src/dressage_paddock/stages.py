"""Calling a task family's hook: within its time, with its result held to its type."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from dressage_sandbox.errors import SandboxError

from dressage_paddock.errors import HookFailedError, StageError
from dressage_paddock.failure import Stage
from dressage_paddock.waiting import within

T = TypeVar("T")


async def call_hook(
    stage: Stage, kind: type[T], hook: Callable[[], Awaitable[T | None]], seconds: float
) -> T | None:
    """The hook's result.

    Raises :class:`HookFailedError` where it raised or gave something else than ``kind`` or None; what a
    sandbox or a stage raised passes as it is.
    """
    try:
        given = await within(seconds, f"the hook {stage}", hook())
    except (StageError, SandboxError):
        raise
    except (Exception, SystemExit) as error:
        raise HookFailedError(f"the hook {stage} failed: {type(error).__name__}: {error}") from error
    if given is None or isinstance(given, kind):
        return given
    raise HookFailedError(f"the hook {stage} gave {given!r}: give {kind.__name__}(...) or None")
