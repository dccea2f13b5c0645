"""What the scripts inside print, read strictly: the inside may have tampered with it."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Sequence

from ..errors import SandboxFileNotFound, SandboxGone, file_error
from ..inside.capture import Capture
from ..protocol import DirEntry, RunResult

__all__ = ["data_of", "entries_of", "result_of"]

TIMED_OUT = 124
_KINDS = {b"f": "file", b"d": "dir", b"l": "symlink"}


def result_of(report: bytes, limit: int, seconds: float, cwd: str, *, timed_out: bool) -> RunResult:
    """A command's result.

    Raises:
        SandboxFileNotFound: ``cwd`` does not exist.
        SandboxGone: there is no whole report.
    """
    if report.strip() == b"CWD":
        raise SandboxFileNotFound(2, os.strerror(2), cwd)
    head, _, rest = report.partition(b"\n")
    words, parts = head.split(), rest.split(b":")
    if len(words) != 4 or words[0] != b"DRESSAGE" or len(parts) != 5:
        raise SandboxGone(f"a command gave no report: {report[:200]!r}")
    try:
        code, out_bytes, err_bytes = (int(word) for word in words[1:])
        out_head, out_tail, err_head, err_tail = (_decoded(part) for part in parts[:4])
    except ValueError as error:
        raise SandboxGone("a command gave a broken report") from error
    return RunResult(
        exit_code=TIMED_OUT if timed_out else code,
        stdout=_kept(out_head, out_tail, out_bytes, limit),
        stderr=_kept(err_head, err_tail, err_bytes, limit),
        stdout_bytes=out_bytes,
        stderr_bytes=err_bytes,
        timed_out=timed_out,
        duration_s=seconds,
    )


def _kept(head: bytes, tail: bytes, total: int, limit: int) -> bytes:
    """As the agent of a local sandbox cuts it, so that a policy sees the same text everywhere."""
    capture = Capture(limit)
    if total <= limit:
        capture.add(head[:limit])
    else:
        capture.add(head[: capture.head_room])
        capture.add(tail[-capture.tail_room :] if capture.tail_room else b"")
        capture.total = total
    return capture.kept()


def data_of(answer: bytes, path: str) -> tuple[bytes, bytes]:
    """What follows ``D`` on its line, and the bytes below.

    Raises:
        SandboxFileError: the errno that the inside gave.
        SandboxGone: it is no such answer.
    """
    line, _, body = answer.partition(b"\n")
    kind, _, told = line.partition(b" ")
    if kind == b"E" and told.strip().isdigit():
        raise file_error(int(told), path)
    try:
        data = _decoded(body)
    except ValueError as error:
        raise SandboxGone(f"a broken answer for {path!r}") from error
    if kind != b"D":
        raise SandboxGone(f"no answer for {path!r}: {answer[:200]!r}")
    return told.strip(), data


def entries_of(answer: bytes, path: str) -> list[DirEntry]:
    """The entries of a folder, sorted by name."""
    fields: Sequence[bytes] = data_of(answer, path)[1].split(b"\0")[:-1]
    try:
        entries = [_entry(*three) for three in zip(fields[::3], fields[1::3], fields[2::3], strict=True)]
    except ValueError as error:
        raise SandboxGone(f"a broken folder {path!r}") from error
    return sorted(entries, key=lambda entry: entry.name)


def _entry(kind: bytes, size: bytes, name: bytes) -> DirEntry:
    told = _KINDS.get(kind, "other")
    return DirEntry(os.fsdecode(name), told, int(size) if told == "file" else 0)


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(b"".join(text.split()), validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
