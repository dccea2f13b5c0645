"""What can go wrong with a sandbox.

::

    SandboxError
    ├── InvalidSpec (ValueError)              a field of a spec or of a call that cannot be honoured
    │   └── ArgumentTooLong                   an argument or variable that the kernel would refuse
    ├── ProviderUnavailable (RuntimeError)    no sandbox can be made on this machine; says how to fix it
    │   ├── BubblewrapMissing
    │   └── UserNamespacesForbidden
    ├── Unsupported (NotImplementedError)     a feature that this provider does not have; says which
    ├── Full (RuntimeError)                   admission refused: no room now, or none within the deadline
    ├── LimitNotEnforceable (RuntimeError)    a limit that was asked for by name and cannot be held here
    ├── SandboxStartFailed (RuntimeError)     this one could not be made; another attempt may succeed
    ├── SandboxGone (ConnectionError)         it has ended: terminated, expired, or died
    │   └── OutOfMemory                       by what ran in it: it used up limits.memory_bytes
    └── SandboxFileError (OSError)            a file operation inside, with the errno of the inside
        ├── SandboxFileNotFound (FileNotFoundError)
        ├── NotARegularFile
        └── FileTooLarge                      longer than the caller takes

All keep their standard parents and survive pickling.
"""

from __future__ import annotations

import errno as codes
import os

__all__ = [
    "ArgumentTooLong",
    "BubblewrapMissing",
    "FileTooLarge",
    "Full",
    "InvalidSpec",
    "LimitNotEnforceable",
    "NotARegularFile",
    "OutOfMemory",
    "ProviderUnavailable",
    "SandboxError",
    "SandboxFileError",
    "SandboxFileNotFound",
    "SandboxGone",
    "SandboxStartFailed",
    "Unsupported",
    "UserNamespacesForbidden",
]


class SandboxError(Exception):
    """Root of this package's errors."""


class InvalidSpec(SandboxError, ValueError):  # noqa: N818
    """A field that cannot be honoured; the message names the field and the fix."""


class ArgumentTooLong(InvalidSpec):
    """An argument or environment that the kernel's exec refuses (E2BIG)."""


class ProviderUnavailable(SandboxError, RuntimeError):  # noqa: N818
    """No sandbox can be made on this machine; the message says what to do."""


class BubblewrapMissing(ProviderUnavailable):
    """No usable ``bwrap`` program was found."""


class UserNamespacesForbidden(ProviderUnavailable):
    """The kernel or the container refuses user namespaces; the message says how to allow them."""


class Unsupported(SandboxError, NotImplementedError):  # noqa: N818
    """This provider does not have that feature; the message names it, and a provider or way that has."""


class Full(SandboxError, RuntimeError):  # noqa: N818
    """No room for another sandbox: the queue is full, or the deadline passed in it. Try later."""


class LimitNotEnforceable(SandboxError, RuntimeError):  # noqa: N818
    """A limit was asked for by name that nothing on this machine can hold."""


class SandboxStartFailed(SandboxError, RuntimeError):  # noqa: N818
    """A sandbox could not be made; what bubblewrap said is in the message."""


class SandboxGone(SandboxError, ConnectionError):  # noqa: N818
    """The sandbox has ended: it was terminated, it expired, or it died."""


class OutOfMemory(SandboxGone):
    """It has died of what ran in it: nothing of ``limits.memory_bytes`` was left for its first process."""


class SandboxFileError(SandboxError, OSError):
    """A file operation inside failed; ``errno`` and ``filename`` are those of the inside."""


class SandboxFileNotFound(SandboxFileError, FileNotFoundError):  # noqa: N818
    """No such file or folder inside."""


class NotARegularFile(SandboxFileError):  # noqa: N818
    """A FIFO, socket, device or folder where a regular file is needed."""


class FileTooLarge(SandboxFileError):  # noqa: N818
    """A file that is longer than the caller takes (EFBIG)."""


def again(error: SandboxGone) -> SandboxGone:
    """The same error for another caller: one that is raised twice would collect both their tracebacks."""
    return type(error)(*error.args)


def file_error(code: int, path: str) -> SandboxFileError:
    """The error for an ``errno`` that the inside answered for ``path``."""
    if code in (codes.ENOENT, codes.ENOTDIR):
        return SandboxFileNotFound(code, os.strerror(code), path)
    if code == codes.EINVAL:
        return NotARegularFile(code, "not a regular file", path)
    if code == codes.EISDIR:
        return NotARegularFile(code, os.strerror(code), path)
    if code == codes.EFBIG:
        return FileTooLarge(code, os.strerror(code), path)
    return SandboxFileError(code, os.strerror(code), path)
