"""Reading a session's log, live or retained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dressage_segments import LogRecord, SegmentsError, record_from_bytes

from dressage_store.errors import CorruptStoreError, os_errors
from dressage_store.layout import Layout, read_file
from dressage_store.logfile import Scan, scan


def read_records(layout: Layout, session_id: str) -> Iterator[LogRecord]:
    """The log's records in order: it is read now, and decoded one by one. Raises CorruptStoreError."""
    for path in (layout.log(session_id), layout.retained_log(session_id)):
        try:
            with os_errors(path):
                data = read_file(path)
        except OSError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
        else:
            return _decoded(scan(data, path), path)
    return iter(())


def _decoded(found: Scan, path: Path) -> Iterator[LogRecord]:
    for payload in found.payloads:
        try:
            yield record_from_bytes(payload)
        except SegmentsError as error:
            raise CorruptStoreError(f"{path}: {error}") from error
