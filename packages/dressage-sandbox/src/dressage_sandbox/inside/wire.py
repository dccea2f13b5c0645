"""Frames in both directions: ``<u32 length of body, u8 kind, u32 call>`` and the body.

A body's fields are ``<u32 length>`` and bytes each.
"""

from _struct import Struct

HEADER = Struct("<IBI")
SIZE = Struct("<I")
CHUNK_BYTES = 1 << 18
MAX_ENTRIES = 100_000
MAX_DOWNLOADS = 32
RELAY_PORT, EGRESS_PORT = 8800, 8801
LIVE, SERVICE = 1, 2
"""Flags of RUN: send output as it comes; say when the program has started."""
EXEC_FAILED, EXEC_MISSING, TIMED_OUT = 126, 127, 124

CONFIG, RUN, STDIN, CANCEL, READ, OPEN, DATA, DONE, LIST, ABORT = range(1, 11)
STOP, FETCH, PULL, RELEASE, SOCKET, PACK, UNPACK, QUIET = range(11, 19)
"""Kinds that go to the agent."""
READY, OUT, ERR, EXIT, CHUNK, OK, ENTRIES, FAIL = range(32, 40)
LIVE_OUT, LIVE_ERR, STARTED = range(40, 43)
"""Kinds that come from it; EXIT, OK and FAIL are the last of a call."""


def pack(*fields: bytes) -> bytes:
    """The body that holds these byte strings."""
    return b"".join([SIZE.pack(len(field)) + field for field in fields])


def unpack(body: bytes) -> "list[bytes]":
    """The byte strings of a body.

    Raises:
        ValueError: it is not made of whole fields.
    """
    fields, at = [], 0
    while at < len(body):
        start = at + SIZE.size
        if start > len(body):
            raise ValueError("a field's length is cut off")
        at = start + SIZE.unpack_from(body, at)[0]
        if at > len(body):
            raise ValueError("a field is cut off")
        fields.append(body[start:at])
    return fields


def frame(kind: int, call: int, body: bytes = b"") -> bytes:
    """One frame."""
    head: bytes = HEADER.pack(len(body), kind, call)
    return head + body


def split(buffer: bytearray, longest: int) -> "list[tuple[int, int, bytes]]":
    """Take the whole frames off the front of ``buffer``: (kind, call, body) each.

    Raises:
        ValueError: a frame announces a body longer than ``longest``.
    """
    frames, at = [], 0
    while len(buffer) - at >= HEADER.size:
        length, kind, call = HEADER.unpack_from(buffer, at)
        if length > longest:
            raise ValueError("a frame is too long")
        end = at + HEADER.size + length
        if end > len(buffer):
            break
        frames.append((kind, call, bytes(buffer[at + HEADER.size : end])))
        at = end
    del buffer[:at]
    return frames
