"""Room kept back on the disk, so that what makes room on a full one has the little that it needs itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from dressage_store.errors import StoreFullError

_SIZE = 2**17
"""Noting an ack takes the index a few pages of 4 KiB."""

T = TypeVar("T")


class Reserve:
    """A file of zeros that is given up when the disk is full, and taken back as soon as it is not."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def hold(self) -> None:
        """Take the room if it is not held and the disk has it."""
        try:
            if self._path.exists() and self._path.stat().st_size >= _SIZE:
                return
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, _SIZE)
            finally:
                os.close(descriptor)
        except OSError:
            # Not now: whoever needs more room than there is gets the error where it is needed.
            self._path.unlink(missing_ok=True)

    def spend_on(self, action: Callable[[], T]) -> T:
        """The action's result; on a full disk it is tried again in the room that was held.

        Raises StoreFullError where that is not enough either.
        """
        try:
            return action()
        except StoreFullError:
            if not self._path.exists():
                raise
            self._path.unlink()
            return action()
