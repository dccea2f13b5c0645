"""Starting commands, keeping a bounded part of what they write, and ending all that they started.

A command's tree is found again by a mark that no descendant can take off without privilege: its hard
RLIMIT_RTTIME (inert, since nothing inside may use real-time scheduling) holds the command's number. Numbers
count DOWN and a hard limit can only be lowered, so that a process which tampers with its mark lands on a
number that was not issued yet; such are killed with any command whose time is over.
"""

import _signal as signal  # type: ignore[import-not-found]
import posix
import time
from errno import EAGAIN, EBUSY, EINTR, ENOMEM
from select import EPOLLIN, epoll

from .command import Command, become, failure
from .system import RLIMIT_RTTIME, TAG_TOP, close_all, marks, try_kill, write_all
from .wire import (
    CHUNK_BYTES,
    ERR,
    EXEC_FAILED,
    EXIT,
    FAIL,
    LIVE,
    LIVE_ERR,
    LIVE_OUT,
    OK,
    SERVICE,
    STARTED,
    TIMED_OUT,
    pack,
    unpack,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

KILL_PATIENCE_S = 1.0
LONGEST_WAIT_S = 3600.0
"""epoll takes no more than 24 days."""
START_PATIENCE_S = 10.0
"""How long a service may take to become its program: other processes inside can stop it on the way."""


class Commands:
    """All running commands. ``send`` takes kind, call and body of an answer."""

    def __init__(
        self,
        send: "Callable[[int, int, bytes], None]",
        poll: epoll,
        control_fd: int,
        set_dumpable: "Callable[[int], int]",
    ) -> None:
        self.send, self.poll, self.control_fd, self.set_dumpable = send, poll, control_fd, set_dumpable
        self.limits: list[tuple[int, int]] = []
        self.running: dict[int, Command] = {}
        self.by_fd: dict[int, Command] = {}
        self.inputs: dict[int, int] = {}
        self.last_tag = TAG_TOP
        self.helpers: dict[int, Callable[[int], None]] = {}
        """Children that are no commands, and what is called with their exit status."""

    # -- start ------------------------------------------------------------------------------------------
    def take_stdin(self, call: int, body: bytes) -> None:
        """A piece of the standard input of a command to come; kept in memory of the sandbox."""
        if call not in self.inputs:
            self.inputs[call] = posix.memfd_create("stdin", posix.MFD_CLOEXEC)
        write_all(self.inputs[call], body)

    def run(self, call: int, body: bytes) -> None:
        """Start a command; EXIT (after OUT and ERR) or FAIL answers it later."""
        timeout, limit, cwd, flags, count, *rest = unpack(body)
        argv, pairs = rest[: int(count)], rest[int(count) :]
        env = dict(zip(pairs[::2], pairs[1::2]))  # noqa: B905 - Python 3.8 has no strict
        self.last_tag -= 1
        fds = [self.input_of(call)]
        try:
            for _ in range(3):
                fds += posix.pipe2(posix.O_CLOEXEC)
            stdin, out, out_w, err, err_w, fail, fail_w = fds
            pid = posix.fork()
        except OSError as error:
            close_all(fds)
            if error.errno not in (EAGAIN, ENOMEM):
                raise
            what = b"processes" if error.errno == EAGAIN else b"memory"
            self.not_started(call, EXEC_FAILED, b"cannot fork: the limit of " + what + b" is reached")
            return
        if pid == 0:
            marked = [(RLIMIT_RTTIME, self.last_tag), *self.limits]
            become((stdin, out_w, err_w), fail_w, cwd, argv, env, marked, self.control_fd, self.set_dumpable)
        close_all([stdin, out_w, err_w, fail_w])
        command = Command(call, self.last_tag, pid, (out, err), fail, int(limit))
        command.names, command.service = (cwd, argv[0]), bool(int(flags) & SERVICE)
        patience = int(timeout) / 1000.0 or START_PATIENCE_S
        command.deadline = command.started + patience
        if int(flags) & LIVE:
            command.live = {out: LIVE_OUT, err: LIVE_ERR}
        self.running[call] = command
        for fd in (out, err, fail):
            posix.set_blocking(fd, False)
            self.by_fd[fd] = command
            self.poll.register(fd, EPOLLIN)

    def input_of(self, call: int) -> int:
        """A descriptor of the command's standard input, from its beginning."""
        stdin = self.inputs.pop(call, -1)
        if stdin < 0:
            return posix.open("/dev/null", posix.O_RDONLY | posix.O_CLOEXEC)
        posix.lseek(stdin, 0, 0)
        return stdin

    def take_report(self, command: Command) -> None:
        """The leader has become its program, or could not, or has died before."""
        report = posix.read(command.report, 64)
        self.close_stream(command, command.report)
        if report:
            del self.running[command.call]
            for fd in list(command.open):
                self.close_stream(command, fd)
            self.send_failure(command.call, report, *command.names)
            return
        if command.service:
            if not (command.timed_out or command.stopping):
                command.deadline = float("inf")
            self.send(STARTED, command.call, b"")
        self.finish(command)

    def send_failure(self, call: int, report: bytes, cwd: bytes, program: bytes) -> None:
        """Tell why a program could not start."""
        status, told = failure(report, cwd, program)
        if status:
            self.not_started(call, status, told)
        else:
            self.send(FAIL, call, told)

    def not_started(self, call: int, status: int, why: bytes) -> None:
        """The result of a command that never ran."""
        text = b"dressage: " + why[:200] + b"\n"
        self.send(ERR, call, text)
        self.send(EXIT, call, pack(b"%d" % status, b"0", b"0", b"%d" % len(text), b"0"))

    # -- while it runs ----------------------------------------------------------------------------------
    def drain(self, fd: int) -> None:
        """Take what a stream has now, a bounded amount, so that neighbours get their turn."""
        command = self.by_fd[fd]
        for _ in range(16):
            try:
                if fd == command.report:
                    self.take_report(command)
                    return
                data = posix.read(fd, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self.close_stream(command, fd)
                self.finish(command)
                return
            command.captures[fd].add(data)
            if command.live:
                self.send(command.live[fd], command.call, data)

    def close_stream(self, command: Command, fd: int) -> None:
        """No more of this stream."""
        command.open.discard(fd)
        if self.by_fd.pop(fd, None) is not None:
            self.poll.unregister(fd)
            posix.close(fd)

    def reap(self) -> None:
        """Collect every dead child: leaders, and orphans that process 1 inherited."""
        leaders = {command.pid: command for command in self.running.values()}
        while True:
            try:
                pid, status = posix.waitpid(-1, posix.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.helpers:
                self.helpers.pop(pid)(posix.WEXITSTATUS(status) if posix.WIFEXITED(status) else EINTR)
                continue
            command = leaders.get(pid)
            if command is not None:
                killed = posix.WIFSIGNALED(status)
                command.status = 128 + posix.WTERMSIG(status) if killed else posix.WEXITSTATUS(status)
                self.finish(command)

    # -- end --------------------------------------------------------------------------------------------
    def finish(self, command: Command) -> None:
        """Answer when the leader is dead and nobody holds its streams any more."""
        if command.status < 0 or command.open or command.call not in self.running:
            return
        del self.running[command.call]
        if command.stopping:
            self.kill_tree(command)
        counts = []
        for fd, capture in command.captures.items():
            kept = capture.kept()
            counts.append(b"%d" % capture.total)
            for at in range(0, len(kept), CHUNK_BYTES):
                self.send(command.kinds[fd], command.call, kept[at : at + CHUNK_BYTES])
        over = command.timed_out and not command.stopping
        status = TIMED_OUT if over else command.status
        micros = b"%d" % int((time.monotonic() - command.started) * 1e6)
        self.send(EXIT, command.call, pack(b"%d" % status, b"%d" % over, *counts, micros))

    def end_overdue(self) -> None:
        """End every command whose time is over."""
        now = time.monotonic()
        for command in [c for c in self.running.values() if c.deadline <= now]:
            self.end(command)

    def patience(self) -> float:
        """Seconds until the next deadline, or until the next look; -1 for none."""
        deadline = min((c.deadline for c in self.running.values()), default=float("inf"))
        return -1 if deadline == float("inf") else min(LONGEST_WAIT_S, max(0.0, deadline - time.monotonic()))

    def cancel(self, call: int, _body: bytes) -> None:
        """The caller went away: the same end, its answer is not read."""
        if call in self.running:
            self.end(self.running[call])
        elif call in self.inputs:
            posix.close(self.inputs.pop(call))

    def stop(self, call: int, body: bytes) -> None:
        """Ask the whole tree to end; what has not in ``body`` milliseconds is killed."""
        command = self.running.get(call)
        if command is None:  # it has ended, and its answer is on the way
            return
        command.stopping = True
        command.deadline = time.monotonic() + int(body) / 1000.0
        for pid, tag in marks():
            if tag == command.tag:
                try_kill(pid, signal.SIGTERM)
                try_kill(pid, signal.SIGCONT)

    def end(self, command: Command) -> None:
        """The whole tree dies; what it wrote so far is the result."""
        command.timed_out = True
        command.deadline = float("inf")
        if not self.kill_tree(command) and command.status < 0:
            command.status = TIMED_OUT
        for fd in list(command.open):
            if fd in self.by_fd:
                self.drain(fd)
                self.close_stream(command, fd)
        self.finish(command)

    def quiet(self, call: int, _body: bytes) -> None:
        """Everything that runs dies, but for what the agent itself is at; OK when nothing of it is left."""
        if not self.kill_all(lambda: [pid for pid, _ in marks() if pid not in self.helpers]):
            raise OSError(EBUSY, "something could not be ended")
        self.send(OK, call, b"0")

    def kill_tree(self, command: Command) -> bool:
        """Kill all that carry the command's mark or one that was tampered with; whether all are gone."""

        def find() -> "list[int]":
            victims = [pid for pid, tag in marks() if tag == command.tag or tag < self.last_tag]
            if command.status < 0 and command.pid not in victims:
                victims.append(command.pid)  # stopped before it had its mark
            return victims

        return self.kill_all(find)

    def kill_all(self, find: "Callable[[], list[int]]") -> bool:
        """Kill what ``find`` finds, until it finds nothing more; whether all are gone."""
        give_up = time.monotonic() + KILL_PATIENCE_S
        rounds = 0
        while True:
            victims = find()
            if not victims:
                self.reap()
                return True
            # Stopping first keeps a fork bomb from growing between two looks at /proc.
            for signum in (signal.SIGSTOP, signal.SIGKILL):
                for pid in victims:
                    try_kill(pid, signum)
            self.reap()
            if time.monotonic() > give_up:
                try_kill(-1, signal.SIGKILL)
                return False
            rounds += 1
            if rounds > 2:
                time.sleep(0.001)
