"""Where the agent's program runs: the executor protocol, and one for this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a program ended. ``exit_code`` is its own (128+n for signal n, as a shell says it)."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool


@runtime_checkable
class Executor(Protocol):
    """Runs one program at a time and writes its files, all on the side where the agent lives."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        stdin: bytes = b"",
        timeout_s: float,
        output_bytes: int,
    ) -> ExecResult:
        """Run ``argv`` (no shell) to its end. A time-out or a cancellation ends its whole tree.

        ``output_bytes`` bounds each stream. Raises :class:`LaunchError` where the program cannot be started
        and :class:`ExecutorError` where its end cannot be known.
        """

    async def write(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        """Write a whole file, making parent folders. Raises :class:`ExecutorError`."""
