"""Frames between the host and the exec agent: the host's half of what agent.py describes.

What comes from inside is untrusted: lengths are bounded, fields are bytes, nothing is unpickled.
"""

from __future__ import annotations

import struct

from .errors import SandboxGone

__all__ = ["CHUNK_BYTES", "HEADER", "Kind", "frame", "pack", "split", "unpack"]

HEADER = struct.Struct("<IBI")
_SIZE = struct.Struct("<I")
CHUNK_BYTES = 1 << 18
MAX_BODY = 1 << 20


class Kind:
    """Kinds of frames; numbers below 32 go to the agent, the others come from it."""

    CONFIG, RUN, STDIN, CANCEL, READ, OPEN, DATA, DONE, LIST, ABORT = range(1, 11)
    READY, OUT, ERR, EXIT, CHUNK, OK, ENTRIES, FAIL = range(32, 40)


def pack(*fields: bytes) -> bytes:
    """The body that holds these byte strings."""
    return b"".join(_SIZE.pack(len(field)) + field for field in fields)


def unpack(body: bytes) -> list[bytes]:
    """The byte strings of a body.

    Raises:
        SandboxGone: the body is not made of whole fields, so its sender cannot be trusted any more.
    """
    fields, at = [], 0
    while at < len(body):
        if at + 4 > len(body):
            raise SandboxGone("the sandbox sent a broken frame")
        end = at + 4 + int(_SIZE.unpack_from(body, at)[0])
        if end > len(body):
            raise SandboxGone("the sandbox sent a broken frame")
        fields.append(body[at + 4 : end])
        at = end
    return fields


def frame(kind: int, number: int, body: bytes = b"") -> bytes:
    """One frame."""
    return HEADER.pack(len(body), kind, number) + body


def split(buffer: bytearray) -> list[tuple[int, int, bytes]]:
    """Take the whole frames off the front of ``buffer``: (kind, call number, body) each.

    Raises:
        SandboxGone: a frame is longer than any that the agent sends.
    """
    frames, at = [], 0
    while len(buffer) - at >= HEADER.size:
        length, kind, number = HEADER.unpack_from(buffer, at)
        if length > MAX_BODY:
            raise SandboxGone(f"the sandbox sent a frame of {length} bytes, more than {MAX_BODY}")
        end = at + HEADER.size + length
        if end > len(buffer):
            break
        frames.append((kind, number, bytes(buffer[at + HEADER.size : end])))
        at = end
    del buffer[:at]
    return frames
