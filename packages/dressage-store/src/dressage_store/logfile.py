"""Append-only log files of frames ``[u32 length][u32 crc32][payload]``, little-endian."""

from __future__ import annotations

import os
import struct
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dressage_segments import BufferFormatError, unpack

from dressage_store.errors import CorruptStoreError, StoreFullError, os_errors
from dressage_store.layout import read_file, sync_folder

_HEAD = struct.Struct("<II")
MAX_PAYLOAD = 2**32 - 1


def frame(payload: bytes) -> bytes:
    """The payload as one frame. Raises StoreFullError above 4 GiB."""
    if len(payload) > MAX_PAYLOAD:
        raise StoreFullError(
            f"a record of {len(payload)} bytes is above the format's {MAX_PAYLOAD}: split it"
        )
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


@dataclass(frozen=True, slots=True)
class Scan:
    """What a log file holds: the whole payloads, and the length up to which it is whole."""

    payloads: list[memoryview]
    whole: int


def scan(data: bytes, path: Path) -> Scan:
    """Read frames. A torn tail (a frame that a crash cut, or zeros that it left) is dropped.

    Raises CorruptStoreError for a damaged frame that is no crash's doing: one that is all there, or has a
    good one after it. Dropping it would lose acknowledged records.
    """
    view = memoryview(data)
    payloads: list[memoryview] = []
    at = 0
    while at < len(view):
        payload = _frame_at(view, at)
        if payload is None:
            _check_torn(data, at, path)
            break
        payloads.append(payload)
        at += _HEAD.size + len(payload)
    return Scan(payloads, at)


def _frame_at(view: memoryview, at: int) -> memoryview | None:
    if len(view) - at < _HEAD.size:
        return None
    size, crc = _HEAD.unpack_from(view, at)
    payload = view[at + _HEAD.size : at + _HEAD.size + size]
    return payload if size and len(payload) == size and zlib.crc32(payload) == crc else None


_PAYLOAD_START = b'{"__metadata__":'
_LEAD = 8
"""A payload is safetensors: 8 bytes of header length, then the header, which begins so."""
_BLOCK = 512
"""A power cut may leave a file as long as it was to be, with zeros from some block of the disk on."""


def _check_torn(data: bytes, at: int, path: Path) -> None:
    view = memoryview(data)
    found = data.find(_PAYLOAD_START, at + 1)
    while found >= 0:
        start = found - _LEAD - _HEAD.size
        if start > at and _frame_at(view, start) is not None:
            raise CorruptStoreError(
                f"{path}: the record at byte {at} is damaged, but the one at {start} is whole: "
                "restore the file from a copy, or remove the session"
            )
        found = data.find(_PAYLOAD_START, found + 1)
    if _is_all_there(data, at):
        raise CorruptStoreError(
            f"{path}: the record at byte {at}, the last one, is damaged: "
            "restore the file from a copy, or remove the session"
        )


def _is_all_there(data: bytes, at: int) -> bool:
    """Whether the last frame has all its bytes, by its own length or by its payload's, and no block of zeros
    at its end: then it was written whole, and changed since."""
    written = len(data.rstrip(b"\0"))
    if written <= at or -(-written // _BLOCK) * _BLOCK < len(data):
        return False
    begin = at + _HEAD.size
    if len(data) < begin:
        return False
    size, _ = _HEAD.unpack_from(data, at)
    return begin + size <= len(data) or _is_payload(memoryview(data)[begin:])


def _is_payload(view: memoryview) -> bool:
    try:
        unpack(view)
    except BufferFormatError:
        return False
    return True


class LogWriter:
    """Appends frames to many sessions' files through a bounded set of descriptors.

    The whole length of every file is kept, so that an append costs O(record) even when its descriptor was
    given up meanwhile. Of a file that is open no path is made: that costs as much as a small write.
    """

    def __init__(self, path_of: Callable[[str], Path], *, max_open: int, fsync: bool) -> None:
        self._path_of = path_of
        self._max_open = max(1, max_open)
        self._fsync = fsync
        self._open: OrderedDict[str, int] = OrderedDict()
        self._whole: dict[str, int] = {}

    def append(self, session_id: str, data: bytes) -> None:
        """Append one frame with one write, whole or not at all. Raises StoreFullError, StoreReadOnlyError."""
        try:
            self._append(session_id, data)
        except OSError:
            with os_errors(self._path_of(session_id)):
                raise

    def length(self, session_id: str) -> int | None:
        """The whole length of a file that was written or repaired here."""
        return self._whole.get(session_id)

    def repair(self, session_id: str) -> int:
        """Cut a torn tail off; returns the whole length. Raises CorruptStoreError."""
        path = self._path_of(session_id)
        with os_errors(path):
            data = read_file(path)
            whole = scan(data, path).whole
            if whole < len(data):
                os.truncate(path, whole)
        self._whole[session_id] = whole
        return whole

    def drop(self, session_id: str) -> None:
        """Give up everything known of a file."""
        self._whole.pop(session_id, None)
        descriptor = self._open.pop(session_id, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Close every descriptor."""
        for session_id in list(self._open):
            self.drop(session_id)

    def _append(self, session_id: str, data: bytes) -> None:
        descriptor = self._open.get(session_id)
        if descriptor is None:
            descriptor = self._opened(session_id)
        else:
            self._open.move_to_end(session_id)
        whole = self._whole[session_id]
        try:
            _write_all(descriptor, data)
            if self._fsync:
                os.fsync(descriptor)
            self._whole[session_id] = whole + len(data)
        except BaseException:  # an interrupt, too: who goes on after it must find whole records alone
            self._restore(session_id, descriptor, whole)
            raise

    def _opened(self, session_id: str) -> int:
        path = self._path_of(session_id)
        fresh = not path.exists()
        if not fresh and self._whole.get(session_id) != path.stat().st_size:
            self.repair(session_id)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if fresh:
            self._whole[session_id] = 0
            if self._fsync:
                sync_folder(path.parent)
        self._open[session_id] = descriptor
        while len(self._open) > self._max_open:
            os.close(self._open.popitem(last=False)[1])
        return descriptor

    def _restore(self, session_id: str, descriptor: int, whole: int) -> None:
        """Take a partial record back; a file that cannot be cut now is repaired before it is used again."""
        try:
            os.ftruncate(descriptor, whole)
        except OSError:
            self.drop(session_id)
        else:
            self._whole[session_id] = whole
            if whole == 0:
                self.drop(session_id)
                self._path_of(session_id).unlink(missing_ok=True)


def _write_all(descriptor: int, data: bytes) -> None:
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, memoryview(data)[written:])
