"""The folder of a family's sockets, which does not stay behind for long, not even of one that was killed."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dressage_proxy.errors import ConfigError

PREFIX = "dressage-proxy-"
_LOCK = "lock"
_PATH_BYTES = 103
"""The path of a socket has no more on any system."""
_NAME_BYTES = len("/front.sock")
"""No socket here has a longer name."""
log = logging.getLogger("dressage.proxy")


@contextmanager
def socket_folder(parent: Path | None = None) -> Iterator[Path]:
    """A new private folder in ``parent`` (the system's for temporary files), removed at the end; those of
    processes that were killed are removed first.

    Its process holds a lock on a file in it, which the kernel releases however the process ends. Raises
    ConfigError where no socket can be in it.
    """
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    remove_abandoned(parent)
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent) as name:
        folder = Path(name)
        if len(os.fsencode(folder)) + _NAME_BYTES > _PATH_BYTES:
            raise ConfigError(
                f"--shards: {folder} is too long a path for sockets: set TMPDIR to a shorter one"
            )
        with (folder / f"{_LOCK}.new").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Under its name only once it is held: without it nobody takes the folder for abandoned.
            (folder / f"{_LOCK}.new").rename(folder / _LOCK)
            yield folder


def remove_abandoned(parent: Path) -> list[Path]:
    """Remove this user's socket folders in ``parent`` whose process is gone; returns them. One that cannot be
    removed keeps nothing from starting."""
    gone = []
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            if folder.lstat().st_uid != os.getuid():
                continue
            with (folder / _LOCK).open("r") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
        except (FileNotFoundError, NotADirectoryError, BlockingIOError):
            continue  # it has only begun, has just ended, or lives
        except OSError as error:
            log.warning("%s was left by a process that is gone, and cannot be removed: %s", folder, error)
            continue
        gone.append(folder)
    return gone
