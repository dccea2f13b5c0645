"""What the proxy needs of a store."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from dressage_segments import SegmentSink, SegmentSource


@runtime_checkable
class Store(SegmentSink, SegmentSource, Protocol):
    """Both sides of the store contract."""
