"""What a session wrote down, so that a restart knows which turns it must not run again."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from dressage_blackbox_server.errors import JournalError
from dressage_blackbox_server.model import ID_PATTERN, Frozen, SessionConfig, TurnRecord

SUFFIX = ".jsonl"


class JournalRecord(Frozen):
    """One line: the session's configuration (first), or a turn as it stood from then on."""

    config: SessionConfig | None = None
    turn: TurnRecord | None = None


class Journal(Protocol):
    """Keeps records per session. ``append`` returns only once the record would survive kill -9."""

    def append(self, session_id: str, record: JournalRecord) -> None:
        """Add a record. Raises :class:`JournalError`."""

    def load(self) -> dict[str, list[JournalRecord]]:
        """Every session's records in order. Raises :class:`JournalError` where one cannot be read."""

    def forget(self, session_id: str) -> None:
        """Drop a session's records. Raises :class:`JournalError`."""


class MemoryJournal:
    """Keeps nothing beyond the process: for a state machine whose caller would end with it."""

    def append(self, session_id: str, record: JournalRecord) -> None:
        """Do nothing."""

    def load(self) -> dict[str, list[JournalRecord]]:
        """Nothing."""
        return {}

    def forget(self, session_id: str) -> None:
        """Do nothing."""


class FileJournal:
    """One file of JSON lines per session in ``folder``, readable by its owner only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise JournalError(f"journal folder {folder} cannot be made: {error}") from error

    def append(self, session_id: str, record: JournalRecord) -> None:
        """Append and fsync."""
        line = record.model_dump_json(exclude_none=True).encode() + b"\n"
        try:
            descriptor = os.open(self._path(session_id), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "r+b") as file:
                end = file.seek(0, os.SEEK_END)
                if end and not _ends_line(file.fileno(), end):
                    line = b"\n" + line  # the tail is torn: it must not swallow this record
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            if not end:
                self._sync_folder()
        except OSError as error:
            raise JournalError(f"journal of session {session_id} cannot be written: {error}") from error

    def load(self) -> dict[str, list[JournalRecord]]:
        """Every session's records; a line that was torn by a crash is dropped."""
        try:
            return {
                path.name.removesuffix(SUFFIX): _read(path)
                for path in sorted(self._folder.glob(f"*{SUFFIX}"))
            }
        except OSError as error:
            raise JournalError(f"journal folder {self._folder} cannot be read: {error}") from error

    def forget(self, session_id: str) -> None:
        """Remove the file."""
        try:
            with contextlib.suppress(FileNotFoundError):
                self._path(session_id).unlink()
                self._sync_folder()
        except OSError as error:
            raise JournalError(f"journal of session {session_id} cannot be removed: {error}") from error

    def _path(self, session_id: str) -> Path:
        if not re.fullmatch(ID_PATTERN, session_id):
            raise JournalError(f"session id {session_id!r} cannot name a file: use letters, digits, . _ -")
        return self._folder / f"{session_id}{SUFFIX}"

    def _sync_folder(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _ends_line(descriptor: int, end: int) -> bool:
    return os.pread(descriptor, 1, end - 1) == b"\n"


def _read(path: Path) -> list[JournalRecord]:
    records: list[JournalRecord] = []
    for number, line in enumerate(path.read_bytes().split(b"\n")):
        if not line:
            continue
        try:
            records.append(JournalRecord.model_validate_json(line))
        except ValidationError as error:
            if _is_torn(line):
                continue
            raise JournalError(f"{path}, line {number + 1}: not a record of this version: {error}") from error
    return records


def _is_torn(line: bytes) -> bool:
    """Whether it is no JSON at all: a crash, or a full disk, cut it."""
    try:
        json.loads(line)
    except ValueError:
        return True
    return False
