"""A run's folder for temporary files, which does not outlive the run, not even one that was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "dressage-run-"
_LOCK = ".lock"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new private folder, removed at the end. Folders of runs that were killed are removed first.

    The run holds a lock on a file in its folder, which the kernel releases however the run ends.
    """
    remove_abandoned(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        folder = Path(name)
        with (folder / f"{_LOCK}.new").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Under its final name only when it is held: without it nobody takes the folder for abandoned.
            (folder / f"{_LOCK}.new").rename(folder / _LOCK)
            yield folder


def remove_abandoned(parent: Path) -> list[Path]:
    """Remove this user's scratch folders in ``parent`` whose run is gone; returns them."""
    gone = []
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            if folder.lstat().st_uid != os.getuid():
                continue
            with (folder / _LOCK).open("r") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
        except (FileNotFoundError, NotADirectoryError, BlockingIOError):
            continue  # it has only begun, has just ended, or runs
        gone.append(folder)
    return gone
