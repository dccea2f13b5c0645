"""The exec agent: process 1 of a sandbox. One thread, and nothing in it waits on what a command controls.

It cannot be killed or stopped from inside (the kernel shields process 1 of a pid namespace), nor read or
traced, and ends with the whole sandbox when the host's end of the control socket closes
or the host's process ends.
"""

import _signal as signal  # type: ignore[import-not-found]
import posix
import sys
from _socket import (
    AF_INET,
    AF_UNIX,
    CMSG_LEN,
    MSG_DONTWAIT,
    SCM_RIGHTS,
    SO_REUSEADDR,
    SOCK_SEQPACKET,
    SOCK_STREAM,
    SOL_SOCKET,
    socket,
    socketpair,
)
from errno import EBADF, EINVAL
from select import EPOLLIN, epoll

from .commands import Commands
from .files import Files
from .system import dumpable_switch
from .tree import Trees
from .wire import (
    ABORT,
    CANCEL,
    CONFIG,
    DATA,
    DONE,
    FAIL,
    FETCH,
    HEADER,
    LIST,
    OK,
    OPEN,
    PACK,
    PULL,
    QUIET,
    READ,
    READY,
    RELEASE,
    RUN,
    SIZE,
    SOCKET,
    STDIN,
    STOP,
    UNPACK,
    frame,
    pack,
    split,
    unpack,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_FRAME = 1 << 26


class Agent:
    """The event loop."""

    def __init__(self, control_fd: int, owner_fd: int, set_dumpable: "Callable[[int], int]") -> None:
        self.control = socket(fileno=control_fd)
        self.buffer = bytearray()
        self.poll = epoll()
        self.wake, wake_write = posix.pipe2(posix.O_CLOEXEC | posix.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self.owner_fd = owner_fd
        self.poll.register(control_fd, EPOLLIN)
        self.poll.register(owner_fd, EPOLLIN)  # a process: "readable" when it has ended
        self.poll.register(self.wake, EPOLLIN)
        self.commands = Commands(self.send, self.poll, control_fd, set_dumpable)
        self.files = Files(self.send)
        # Descriptors pass through a door of their own: the control socket is a stream of bytes.
        self.door, self.host_door = socketpair(AF_UNIX, SOCK_SEQPACKET)
        self.trees = Trees(self.send, self.take_fd, self.commands.helpers)
        self.handlers = {
            CONFIG: self.configure, RUN: self.commands.run, STDIN: self.commands.take_stdin,
            CANCEL: self.commands.cancel, READ: self.files.read, OPEN: self.files.open,
            DATA: self.files.data, DONE: self.files.done, LIST: self.files.list, ABORT: self.abort,
            STOP: self.commands.stop, FETCH: self.files.fetch, PULL: self.files.pull,
            RELEASE: self.files.release, SOCKET: self.make_socket,
            PACK: self.trees.pack, UNPACK: self.trees.unpack, QUIET: self.commands.quiet,
        }  # fmt: skip

    def send(self, kind: int, call: int, body: bytes) -> None:
        """One frame to the host, which always drains."""
        self.control.sendall(frame(kind, call, body))

    def serve(self) -> None:
        """Until the host's end closes, or its process ends and some copy of it holds the socket open."""
        control_fd = self.control.fileno()
        while True:
            for fd, _ in self.poll.poll(self.commands.patience()):
                if fd == self.owner_fd or (fd == control_fd and not self.take()):
                    return
                if fd == control_fd:
                    continue
                if fd == self.wake:
                    posix.read(self.wake, 4096)
                    self.commands.reap()
                elif fd in self.commands.by_fd:
                    self.commands.drain(fd)
            self.commands.end_overdue()

    def take(self) -> bool:
        """Read from the host and handle each whole frame; False when it has gone."""
        data = self.control.recv(1 << 18)
        if not data:
            return False
        self.buffer += data
        for kind, call, body in split(self.buffer, LONGEST_FRAME):
            try:
                self.handlers[kind](call, body)
            except OSError as error:
                named = error.filename if isinstance(error.filename, bytes) else b""
                self.send(FAIL, call, pack(b"%d" % (error.errno or EINVAL), named))
            except (ArithmeticError, MemoryError, ValueError):
                # A number that no system call takes, say: of one call, and no reason to end the sandbox.
                self.send(FAIL, call, pack(b"%d" % EINVAL, b""))
        return True

    def configure(self, call: int, body: bytes) -> None:
        """Work folder, ports to listen on, limits of each command; answers READY, with door and listeners."""
        workdir, ports, *limits = unpack(body)
        posix.chdir(workdir)
        numbers = [int(number) for number in limits]
        self.commands.limits = list(zip(numbers[::2], numbers[1::2]))  # noqa: B905 - Python 3.8 has no strict
        passed = [self.host_door]
        for port in ports.split():
            listener = socket(AF_INET, SOCK_STREAM)
            listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", int(port)))
            listener.listen(128)
            passed.append(listener)
        # A socket stays in the network namespace where it was made: the host accepts on these itself.
        fds = b"".join([SIZE.pack(each.fileno()) for each in passed])
        self.control.sendmsg([HEADER.pack(0, READY, call)], [(SOL_SOCKET, SCM_RIGHTS, fds)])
        for each in passed:
            each.close()

    def make_socket(self, call: int, _body: bytes) -> None:
        """A fresh socket of this network namespace for the host, who connects it himself."""
        fresh = socket(AF_INET, SOCK_STREAM)
        rights = (SOL_SOCKET, SCM_RIGHTS, SIZE.pack(fresh.fileno()))
        self.door.sendmsg([SIZE.pack(call)], [rights], MSG_DONTWAIT)
        fresh.close()
        self.send(OK, call, b"0")

    def take_fd(self, call: int) -> int:
        """The descriptor that the host sent ahead of this call."""
        while True:
            data, rights, _, _ = self.door.recvmsg(SIZE.size, CMSG_LEN(SIZE.size), MSG_DONTWAIT)
            if not rights:
                raise OSError(EBADF, "no descriptor came")
            fd: int = SIZE.unpack(rights[0][2])[0]
            posix.set_inheritable(fd, False)
            if SIZE.unpack(data)[0] == call:
                return fd
            posix.close(fd)  # of a call that never came

    def abort(self, call: int, body: bytes) -> None:
        """The caller of a file call went away."""
        self.files.abort(call, body)
        self.files.release(call, body)
        self.trees.abort(call, body)


def main() -> None:
    """Arguments: the descriptors of the control socket and of the owner's process."""
    control, owner = int(sys.argv[1]), int(sys.argv[2])
    low, high = sorted((control, owner))
    for first, last in ((3, low), (low + 1, high), (high + 1, 1 << 16)):
        posix.closerange(first, last)  # what bubblewrap was given must not come into a command's hands
    posix.set_inheritable(control, False)
    posix.set_inheritable(owner, False)
    set_dumpable = dumpable_switch()
    if set_dumpable(0) != 0:
        sys.exit("prctl(PR_SET_DUMPABLE) failed")
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    Agent(control, owner, set_dumpable).serve()
    posix._exit(0)


if __name__ == "__main__":
    main()
