"""A request as a forward proxy gets it: CONNECT, or plain HTTP in absolute form, and nothing else."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from .errors import InvalidSpec
from .relay import parse_address

__all__ = ["HEAD_BYTES", "Refused", "Target", "read_head", "target_of"]

HEAD_BYTES = 64 << 10
_HEAD_S = 15.0
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE = re.compile(_TOKEN + rb" [!-~]+ HTTP/1\.[01]")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""What one server takes for the end of a line, or of a word, and another does not."""
_NOT_FOR_THE_ORIGIN = frozenset(
    b"connection proxy-connection proxy-authorization keep-alive te trailer upgrade host".split()
)


class Refused(Exception):  # noqa: N818 - never leaves this module but as an answer to the inside
    """What is asked for is not allowed, or cannot be had; ``status`` is HTTP's."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes; ``request`` is its head for the origin, or None for a tunnel."""

    host: str
    port: int
    request: bytes | None
    body_bytes: int


async def read_head(reader: asyncio.StreamReader) -> bytes:
    """A request's head with its empty line; it must come whole, soon, and not be long.

    Raises:
        Refused: it does not.
    """
    try:
        async with asyncio.timeout(_HEAD_S):
            return await reader.readuntil(b"\r\n\r\n")
    except TimeoutError:
        raise Refused(408, "no request came") from None
    except asyncio.LimitOverrunError:
        raise Refused(431, "the request's head is too long") from None
    except asyncio.IncompleteReadError:
        raise Refused(400, "the request is cut off") from None


def target_of(head: bytes) -> Target:
    """Read a request's head.

    Raises:
        Refused: it is not one that a proxy can take.
    """
    line, *fields = head[:-4].split(b"\r\n")
    words = line.split(b" ")
    if not _REQUEST_LINE.fullmatch(line) or any(_CONTROL.search(field) for field in fields):
        raise Refused(400, "not a request of HTTP/1")
    method, url = words[0].decode(), words[1].decode()
    if method == "CONNECT":
        try:
            return Target(*parse_address(url, "CONNECT"), None, 0)
        except InvalidSpec as error:
            raise Refused(400, str(error)) from None
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, 80 if parts.port is None else parts.port
    except ValueError:
        raise Refused(400, "not a URL that a proxy can take") from None
    if parts.scheme != "http" or not host or parts.username is not None:
        raise Refused(400, "a proxy takes http://host/path, or CONNECT host:port")
    kept, body_bytes = _fields(fields)
    path = parts.path or "/"
    origin = f"{method} {path}{'?' + parts.query if parts.query else ''} {words[2].decode()}\r\n".encode()
    authority = parts.netloc.encode()
    request = origin + b"Host: " + authority + b"\r\nConnection: close\r\n" + kept + b"\r\n"
    return Target(host, port, request, body_bytes)


def _fields(fields: Sequence[bytes]) -> tuple[bytes, int]:
    """Header fields for the origin, and the length of the body: one request, one host, nothing smuggled."""
    kept, lengths = b"", set()
    for entry in fields:
        name, colon, value = entry.partition(b":")
        key = name.lower()
        if not colon or not re.fullmatch(_TOKEN, key):
            raise Refused(400, "a header field is not one")
        if key == b"transfer-encoding":
            raise Refused(411, "plain HTTP through this proxy needs a Content-Length, or use https")
        if key == b"content-length":
            lengths.add(value.strip())
        if key not in _NOT_FOR_THE_ORIGIN:
            kept += entry + b"\r\n"
    if len(lengths) > 1 or not all(length.isdigit() and len(length) < 16 for length in lengths):
        raise Refused(400, "Content-Length is not one number")
    return kept, int(lengths.pop()) if lengths else 0
