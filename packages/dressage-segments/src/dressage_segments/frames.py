"""Frames of ``[u64 little-endian length][buffer]``: how several segments travel in one reply."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dressage_segments.errors import BufferFormatError

_LENGTH_BYTES = 8


def write_frames(buffers: Iterable[bytes | bytearray | memoryview]) -> bytes:
    """All buffers as one byte string of frames, in order."""
    parts: list[bytes | bytearray | memoryview] = []
    for buffer in buffers:
        parts.append(len(buffer).to_bytes(_LENGTH_BYTES, "little"))
        parts.append(buffer)
    return b"".join(parts)


def iter_frames(data: bytes | bytearray | memoryview) -> Iterator[memoryview]:
    """The buffers of ``data`` as views. Raises BufferFormatError where a frame is cut off."""
    view = memoryview(data).cast("B")
    at = 0
    while at < len(view):
        if len(view) - at < _LENGTH_BYTES:
            raise BufferFormatError(f"{len(view) - at} bytes at {at} cannot hold a frame's length")
        size = int.from_bytes(view[at : at + _LENGTH_BYTES], "little")
        at += _LENGTH_BYTES
        if size > len(view) - at:
            raise BufferFormatError(f"frame at {at} announces {size} bytes, {len(view) - at} are left")
        yield view[at : at + size]
        at += size
