"""What an audit reports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Promise(StrEnum):
    """The promises that a stored session is checked for."""

    P1 = "P1"
    """Sampled in context."""
    P2 = "P2"
    """Exactly once."""
    P3 = "P3"
    """Aligned or refused."""
    P4 = "P4"
    """Segmentation-invariant."""
    P5 = "P5"
    """Provenance."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A doubt about one promise, and where it is."""

    promise: Promise
    message: str
    segment_index: int | None = None
    call_id: str = ""

    def __str__(self) -> str:
        where = "" if self.segment_index is None else f" segment {self.segment_index}"
        call = f" call {self.call_id}" if self.call_id else ""
        return f"{self.promise}{where}{call}: {self.message}"
