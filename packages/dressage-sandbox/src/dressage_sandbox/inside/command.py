"""One command: what is known of it while it runs, and how a child of the agent becomes its program."""

import _signal as signal  # type: ignore[import-not-found]
import posix
import time
from _stat import S_IMODE
from errno import E2BIG, EACCES, EAGAIN, EINVAL, EISDIR, ENOENT, ENOEXEC, ENOMEM, ENOTDIR
from resource import setrlimit

from .capture import Capture
from .system import execute, prefer_as_oom_victim
from .wire import ERR, EXEC_FAILED, EXEC_MISSING, OUT, pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn


class Command:
    """A started command: its leader, its streams, its deadline.

    ``report`` is where the leader tells why it could not become its program; it ends unread once it has.
    """

    def __init__(
        self, call: int, tag: int, pid: int, streams: "tuple[int, int]", report: int, limit: int
    ) -> None:
        self.call, self.tag, self.pid = call, tag, pid
        self.started = time.monotonic()
        self.deadline = float("inf")
        self.status = -1  # of the leader; -1 while it lives
        self.timed_out = self.stopping = False
        self.captures = {streams[0]: Capture(limit), streams[1]: Capture(limit)}
        self.kinds = {streams[0]: OUT, streams[1]: ERR}
        self.live: dict[int, int] = {}
        self.report, self.names, self.service = report, (b"", b""), False
        self.open = {*streams, report}


def become(
    streams: "tuple[int, int, int]",
    fail: int,
    cwd: bytes,
    argv: "list[bytes]",
    env: "dict[bytes, bytes]",
    limits: "list[tuple[int, int]]",
    control_fd: int,
    set_dumpable: "Callable[[int], int]",
) -> "NoReturn":
    """In the child: limits, streams, folder, then the program. Why it could not goes to ``fail``."""
    stage, code = b"s", EINVAL
    try:
        setrlimit(limits[0][0], (limits[0][1], limits[0][1]))  # the mark: before anything that may go wrong
        posix.close(control_fd)
        posix.setsid()
        for target, fd in enumerate(streams):
            posix.dup2(fd, target, True)
        # Process 1 may not be read or traced, since it answers for all; its child may from here on.
        set_dumpable(1)
        prefer_as_oom_victim()
        for signum in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            signal.signal(signum, signal.SIG_DFL)
        for resource, value in limits[1:]:
            setrlimit(resource, (value, value))
        stage = b"c"
        enter(cwd)
        stage = b"x"
        execute(argv, env)
    except OSError as error:
        code = error.errno or EINVAL
    finally:  # whatever happened, this copy of the agent must not live on
        posix.write(fail, stage + b"%d" % code)
        posix._exit(EXEC_MISSING)
    raise AssertionError("not reached")


def enter(folder: bytes) -> None:
    """Make a folder the current one, also where a command before this one has closed it to its own user."""
    try:
        posix.chdir(folder)
    except PermissionError:
        posix.chmod(folder, S_IMODE(posix.stat(folder).st_mode) | 0o700)
        posix.chdir(folder)


def failure(report: bytes, cwd: bytes, program: bytes) -> "tuple[int, bytes]":
    """Exit status and message of a program that did not start, as a shell says it: 127 for a missing one,
    126 for one that cannot be run. Status 0 where it is no result, but an error of the call: FAIL's body."""
    stage, code = report[:1], int(report[1:])
    if stage == b"x" and code in (ENOENT, ENOTDIR):
        return EXEC_MISSING, program + b": not found"
    if stage == b"x" and code in (EACCES, ENOEXEC, EISDIR):
        return EXEC_FAILED, program + b": cannot be executed"
    if code in (EAGAIN, ENOMEM):
        return EXEC_FAILED, b"cannot start: a limit is reached"
    named = cwd if stage == b"c" else b"" if code == E2BIG else program
    return 0, pack(b"%d" % code, named)
