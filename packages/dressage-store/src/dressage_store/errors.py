"""Errors of this package.

::

    StoreError(Exception)
    ├── StorePathError(OSError)         the store's folder cannot be used: missing, not a folder, not a store
    ├── StoreReadOnlyError(OSError)     the disk, the permissions or the way it was opened forbid writing
    ├── StoreFullError(OSError)         the disk or the quota is full; nothing of the record was kept
    ├── StoreLockedError(OSError)       another process writes to this store
    ├── StoreVersionError(ValueError)   the store was written in another format
    ├── StoreClosedError(RuntimeError)  used after close()
    ├── CorruptStoreError(ValueError)   bytes in the middle of a log, or a trajectory, are damaged
    ├── NotFoundError(LookupError)      no such session or trajectory, or it was acked
    ├── GenerationError(ValueError)     a late write, or an ack, of another generation
    ├── SessionIdError(ValueError)      the session id is not one that names a file safely
    ├── SessionExistsError(ValueError)  a session of that id was opened before
    └── SessionFinishedError(ValueError) the session was acked or dropped; its id is never used again

All pickle, and each message names the path or field and the fix.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class StoreError(Exception):
    """Root of this package's errors."""


class StorePathError(StoreError, OSError):
    """The store's folder cannot be used."""


class StoreReadOnlyError(StoreError, OSError):
    """Writing is forbidden by the disk, by permissions, or by how the store was opened."""


class StoreFullError(StoreError, OSError):
    """The disk or the quota is full; nothing of what was to be written was kept."""


class StoreLockedError(StoreError, OSError):
    """Another process writes to this store."""


class StoreVersionError(StoreError, ValueError):
    """The store was written in another format."""


class StoreClosedError(StoreError, RuntimeError):
    """The store was closed."""


class CorruptStoreError(StoreError, ValueError):
    """What was written whole is damaged now."""


class NotFoundError(StoreError, LookupError):
    """No such session or trajectory, or it was acked."""


class GenerationError(StoreError, ValueError):
    """A late write, or an ack, of another generation."""


class SessionIdError(StoreError, ValueError):
    """The session id does not name a file safely."""


class SessionExistsError(StoreError, ValueError):
    """A session of that id was opened before."""


class SessionFinishedError(StoreError, ValueError):
    """The session was acked or dropped."""


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EROFS, errno.EACCES, errno.EPERM}


@contextmanager
def os_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals at ``path`` into this package's errors."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise StoreFullError(f"{path}: {error.strerror}: free space or raise the limit") from error
        if error.errno in _FORBIDDEN:
            raise StoreReadOnlyError(
                f"{path}: {error.strerror}: give a folder that can be written"
            ) from error
        raise StorePathError(f"{path}: {error.strerror or error}") from error
    except sqlite3.OperationalError as error:
        if "full" in str(error):
            raise StoreFullError(f"{path}: {error}: free space or raise the limit") from error
        if "readonly" in str(error):
            raise StoreReadOnlyError(f"{path}: {error}: give a folder that can be written") from error
        raise StorePathError(f"{path}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise CorruptStoreError(f"{path}: {error}: restore it, or start a new store") from error
