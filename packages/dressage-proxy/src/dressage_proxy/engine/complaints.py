"""What goes wrong at engines, in the log: enough to find it, and not a line for each failed try."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

_EVERY_S = 5.0
log = logging.getLogger("dressage.proxy")


@dataclass(slots=True)
class _Said:
    at: float
    more: int = 0
    """That were not said since."""


class Complaints:
    """One line for an engine and kind of trouble now and then; the next one counts what was left out."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` tells seconds and does not go back."""
        self._clock = clock
        self._said: dict[tuple[str, int], _Said] = {}

    def note(self, url: str, text: str, level: int) -> None:
        """Something went wrong at an engine."""
        now = self._clock()
        said = self._said.get((url, level))
        if said is not None and now - said.at < _EVERY_S:
            said.more += 1
            return
        more = f" ({said.more} more of it before)" if said is not None and said.more else ""
        self._said[url, level] = _Said(now)
        log.log(level, "engine %s: %s%s", url, text, more)
