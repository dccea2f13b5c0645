"""Calls as the agent takes them, and its answers; what no exec or file system would take is refused here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from .errors import ArgumentTooLong, InvalidSpec, SandboxGone
from .inside import wire
from .specs import check_variable, raw_text

__all__ = [
    "OTHER_WAY",
    "arguments_of",
    "check_part",
    "check_seconds",
    "numbers_of",
    "path_of",
    "variables_of",
]

OTHER_WAY = "pass it as stdin, or write() it to a file"
_ARG_MAX = (128 << 10) - 1
"""Longest argument or variable that Linux's exec takes (MAX_ARG_STRLEN less its NUL)."""
_LONGEST_FILE = 1 << 62


def arguments_of(command: str | Sequence[str]) -> list[bytes]:
    """The argument list of a command; a str is a line for /bin/sh, which is no login shell and keeps PATH.

    Raises:
        InvalidSpec, ArgumentTooLong: says which argument and what to do instead.
    """
    if not isinstance(command, Sequence) or isinstance(command, bytes | bytearray | memoryview):
        raise TypeError(f"command is {type(command).__name__}: give a list of words, or a shell line as str")
    words = ["/bin/sh", "-c", command] if isinstance(command, str) else command
    raw = [raw_text(f"command: argument {number}", word) for number, word in enumerate(words)]
    if not raw or not raw[0]:
        raise InvalidSpec("command: give a program's name")
    for number, word in enumerate(raw):
        if b"\0" in word:
            raise InvalidSpec(f"command: argument {number} holds a NUL byte; {OTHER_WAY}")
        if len(word) > _ARG_MAX:
            raise ArgumentTooLong(f"command: argument {number} has {len(word)} bytes; {OTHER_WAY}")
    return raw


def variables_of(env: Mapping[str, str]) -> list[bytes]:
    """Names and values in turns.

    Raises:
        InvalidSpec, ArgumentTooLong: names the variable.
    """
    fields: list[bytes] = []
    for key, value in env.items():
        check_variable(key, value)
        fields += [raw_text("env", key), raw_text(f"env {key!r}", value)]
        if len(fields[-1]) + len(fields[-2]) + 1 > _ARG_MAX:
            raise ArgumentTooLong(f"env {key!r} has {len(fields[-1])} bytes; {OTHER_WAY}")
    return fields


def check_seconds(name: str, seconds: float) -> None:
    """Refuse a time-out that is none.

    Raises:
        InvalidSpec: names the argument.
    """
    if not 0 < seconds < math.inf:
        raise InvalidSpec(f"{name}={seconds}: must be more than 0 seconds, and finite")


def check_part(offset: int, max_bytes: int) -> None:
    """Refuse a part that no file can have.

    Raises:
        InvalidSpec: names the argument.
    """
    for name, value in (("offset", offset), ("max_bytes", max_bytes)):
        if not 0 <= value <= _LONGEST_FILE:
            raise InvalidSpec(f"{name} must not be negative, nor more than {_LONGEST_FILE}")


def path_of(path: str) -> bytes:
    """A path of the inside.

    Raises:
        InvalidSpec: no file can have it.
    """
    raw = raw_text("path", path)
    if not raw or b"\0" in raw:
        raise InvalidSpec(f"path {path!r} is empty or holds a NUL byte")
    return raw


def numbers_of(body: bytes, count: int) -> list[int]:
    """The ``count`` numbers of an answer.

    Raises:
        SandboxGone: it is not such an answer.
    """
    try:
        fields = wire.unpack(body)
    except ValueError:
        fields = []
    if len(fields) != count or not all(field.isdigit() and len(field) < 20 for field in fields):
        raise SandboxGone("the sandbox sent a broken answer")
    return [int(field) for field in fields]
