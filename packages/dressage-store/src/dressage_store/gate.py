"""The one door to a files store: threads one at a time, nothing after close, no writes where forbidden."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dressage_store.errors import StoreClosedError, StoreReadOnlyError


class Gate:
    """Serialises threads; a thread that is inside may enter again."""

    def __init__(self, root: Path, *, read_only: bool) -> None:
        self._root = root
        self._read_only = read_only
        self._mutex = threading.RLock()
        self._closed = False
        self._process = os.getpid()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Raises StoreClosedError, also in a process that was forked from the one that opened the store."""
        if os.getpid() != self._process:
            raise StoreClosedError(
                f"{self._root}: was opened by process {self._process}, of which this is a fork: "
                "open it here too, with read_only=True"
            )
        with self._mutex:
            if self._closed:
                raise StoreClosedError(f"{self._root}: the store was closed")
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Raises StoreClosedError, StoreReadOnlyError."""
        with self.reading():
            if self._read_only:
                raise StoreReadOnlyError(f"{self._root}: was opened with read_only=True: open it for writing")
            yield

    @contextmanager
    def closing(self) -> Iterator[bool]:
        """True for the first who closes; nobody enters afterwards. A fork has nothing to close."""
        if os.getpid() != self._process:
            yield False
            return
        with self._mutex:
            first = not self._closed
            self._closed = True
            yield first
