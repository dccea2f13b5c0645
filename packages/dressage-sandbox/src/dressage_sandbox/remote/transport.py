"""What a remote sandbox needs of the place where it is."""

from __future__ import annotations

from typing import Protocol


class Transport(Protocol):
    """Reaches one machine or container.

    Both calls raise ``SandboxGone`` where the place has ended, and another ``SandboxError`` where it could
    not be reached; retries of what is safe to do again are the transport's own.
    """

    async def run(self, script: str, *, timeout_s: float | None, as_root: bool = False) -> bytes:
        """Standard output of ``sh -c script``, whatever its exit code; ``timeout_s`` None: no time-out.

        ``DRESSAGE_PATH`` in its environment is the image's PATH where the shell was not started with it.
        ``as_root`` is for ending what a command started; where there is no root it is the agent's user.
        """

    async def put(self, path: str, data: bytes) -> None:
        """Write a file of a new name in a folder that exists, readable for the agent's user."""

    async def end(self) -> None:
        """End the place with all that is in it. Idempotent; raises where that is not certain."""
