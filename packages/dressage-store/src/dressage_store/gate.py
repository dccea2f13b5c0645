"""The one door to a files store: threads one at a time, nothing after close, no writes where forbidden."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType

from dressage_store.errors import StoreClosedError, StoreError, StoreReadOnlyError


class _Inside:
    """What a ``with`` holds on to. It keeps nothing of its own, so one serves all; a generator for each use
    would cost an append more than its lock does."""

    __slots__ = ("_gate", "_writes")

    def __init__(self, gate: Gate, *, writes: bool) -> None:
        self._gate = gate
        self._writes = writes

    def __enter__(self) -> None:
        self._gate.enter(writes=self._writes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate.leave()


class Gate:
    """Serialises threads; a thread that is inside may enter again."""

    def __init__(self, root: Path, *, read_only: bool) -> None:
        self._root = root
        self._read_only = read_only
        self._mutex = threading.RLock()
        self._closed = False
        self._process = os.getpid()
        self._inside = _Inside(self, writes=False)
        self._inside_writing = _Inside(self, writes=True)

    def reading(self) -> AbstractContextManager[None]:
        """Raises StoreClosedError, also in a process that was forked from the one that opened the store."""
        return self._inside

    def writing(self) -> AbstractContextManager[None]:
        """Raises StoreClosedError, StoreReadOnlyError."""
        return self._inside_writing

    def enter(self, *, writes: bool) -> None:
        """Take the mutex, or raise and do not."""
        if os.getpid() != self._process:
            raise StoreClosedError(
                f"{self._root}: was opened by process {self._process}, of which this is a fork: "
                "open it here too, with read_only=True"
            )
        self._mutex.acquire()
        try:
            if self._closed:
                raise StoreClosedError(f"{self._root}: the store was closed")
            if writes and self._read_only:
                raise StoreReadOnlyError(f"{self._root}: was opened with read_only=True: open it for writing")
        except StoreError:
            self._mutex.release()
            raise

    def leave(self) -> None:
        """Give the mutex back."""
        self._mutex.release()

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
