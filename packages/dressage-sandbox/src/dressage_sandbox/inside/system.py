"""Small things of the operating system, without the weight of ``os``."""

import posix
from errno import ENOENT
from resource import prlimit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

RLIMIT_RTTIME = 15
TAG_TOP = 1 << 62
"""Command marks count down from here (see commands.py)."""


def write_all(fd: int, data: bytes) -> None:
    """Write every byte."""
    view = memoryview(data)
    while view:
        view = view[posix.write(fd, view) :]


def close_all(fds: "tuple[int, ...] | list[int]") -> None:
    """Close each."""
    for fd in fds:
        posix.close(fd)


def try_kill(pid: int, signum: int) -> None:
    """Signal a process that may have died meanwhile."""
    try:
        posix.kill(pid, signum)
    except ProcessLookupError:
        return


def marks() -> "list[tuple[int, int]]":
    """Pairs of process and command mark, process 1 left out."""
    found = []
    for name in posix.listdir("/proc"):
        if not name.isdigit() or name == "1":
            continue
        pid = int(name)
        try:
            mark = prlimit(pid, RLIMIT_RTTIME)[1]
        except (ProcessLookupError, PermissionError):  # died meanwhile
            continue
        found.append((pid, mark if mark >= 0 else TAG_TOP))
    return found


def prefer_as_oom_victim() -> None:
    """So that memory pressure takes the command and not process 1."""
    fd = posix.open("/proc/self/oom_score_adj", posix.O_WRONLY | posix.O_CLOEXEC)
    posix.write(fd, b"500")
    posix.close(fd)


def execute(argv: "list[bytes]", env: "dict[bytes, bytes]") -> None:
    """Replace this process; a bare name is looked up on the command's own PATH."""
    program = argv[0]
    if b"/" in program:
        posix.execve(program, argv, env)
    missing: OSError = FileNotFoundError(ENOENT, "not found")
    for folder in env.get(b"PATH", b"/usr/bin:/bin").split(b":"):
        try:
            posix.execve((folder or b".") + b"/" + program, argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            missing = error
    raise missing


def dumpable_switch() -> "Callable[[int], int]":
    """A function that sets whether others of this user may read and trace this process (PR_SET_DUMPABLE)."""
    import _ctypes  # the ctypes package itself costs three times as much to import

    address = _ctypes.dlsym(_ctypes.dlopen(None, 2), "prctl")  # type: ignore[arg-type]
    return lambda flag: _ctypes.call_function(address, (4, flag, 0, 0, 0))
