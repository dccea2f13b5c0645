"""What checks are made of."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from ..protocol import Sandbox, SandboxProvider, SandboxSpec

Check = Callable[[SandboxProvider, SandboxSpec], Awaitable[None]]
GRACE_S = 2.0


class NotConforming(AssertionError):  # noqa: N818
    """A provider does not do what the protocol says."""


def expect(condition: bool, sentence: str) -> None:
    """Raise ``NotConforming`` with the sentence unless the condition holds."""
    if not condition:
        raise NotConforming(sentence)


@contextlib.asynccontextmanager
async def sandbox_of(provider: SandboxProvider, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
    """A sandbox that ends with the block."""
    sandbox = await provider.create(spec)
    try:
        yield sandbox
    finally:
        await sandbox.terminate()


@contextlib.asynccontextmanager
async def raises(kind: type[Exception], sentence: str) -> AsyncIterator[None]:
    """The block must raise this."""
    try:
        yield
    except kind:
        return
    raise NotConforming(f"{sentence}: expected {kind.__name__}")
