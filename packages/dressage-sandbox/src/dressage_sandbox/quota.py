"""The CPU limit of a sandbox, and when it is not held.

Process 1 is in the group that it limits, since its children are to be: commands that use the whole of it up
would hold up the reading of a file, the end of a command's time and the sandbox's own end. So it is lifted
while something waits for process 1 alone, which takes milliseconds then.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from .groups import write

__all__ = ["Quota"]


@dataclass(slots=True)
class Quota:
    """A setting of a control group: ``held`` is its usual text, ``free`` lifts it."""

    file: Path
    held: str
    free: str
    _waiting: int = 0

    def lift(self) -> None:
        """Until as many times ``hold``."""
        self._waiting += 1
        if self._waiting == 1:
            self._set(self.free)

    def hold(self) -> None:
        """What it was lifted for is done."""
        self._waiting -= 1
        if not self._waiting:
            self._set(self.held)

    def _set(self, text: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # the group has gone with its sandbox
            write(self.file, text)
