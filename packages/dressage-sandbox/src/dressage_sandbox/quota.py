"""The CPU limit of a sandbox, and when it is not held.

Process 1 is in the group that it limits, since its children are to be: commands that use the whole of it up
would hold up the reading of a file, the end of a command's time and the sandbox's own end. So it is lifted
while something waits for process 1 alone: milliseconds mostly, longer for archives and for the grace that a
service is given.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from dataclasses import dataclass
from pathlib import Path

from .groups import write

__all__ = ["Quota"]

_RETRY_S = 1.0
_GONE = (errno.ENOENT, errno.ENODEV)
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Quota:
    """A setting of a control group: ``held`` is its usual text, ``free`` lifts it.

    Where it cannot be written (this process has no descriptor left), it is as soon as it can be: neither a
    call nor the sandbox's end fails of that.
    """

    file: Path
    held: str
    free: str
    _waiting: int = 0
    _again: asyncio.TimerHandle | None = None

    def lift(self) -> None:
        """Until as many times ``hold``."""
        self._waiting += 1
        if self._waiting == 1:
            self._set()

    def hold(self) -> None:
        """What it was lifted for is done."""
        self._waiting -= 1
        if not self._waiting:
            self._set()

    def _set(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        try:
            write(self.file, self.free if self._waiting else self.held)
        except OSError as error:
            if error.errno not in _GONE:  # with its sandbox
                _log.warning("a CPU limit could not be written, and is later: %s", error)
                self._again = asyncio.get_running_loop().call_later(_RETRY_S, self._set)
