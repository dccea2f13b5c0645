"""The exec agent: process 1 of a sandbox, runs commands and touches files on the host's behalf.

This file is handed into the sandbox alone, as bytecode, so it imports built-in modules only: ``os``,
``json`` or ``asyncio`` would double the CPU time of a sandbox's start. It must run on Python 3.8.

The command's whole tree is found again by a mark that no descendant can take off without privilege: the
hard RLIMIT_RTTIME (inert, since nothing inside may use real-time scheduling) holds the command's number.
Numbers count DOWN from ``TAG_TOP`` and a hard limit can only be lowered, so that a process which tampers
with its mark lands on a number that was not issued yet, and such are killed with any timed-out command.

Frames in both directions: ``<u32 length of body, u8 kind, u32 id>`` and the body; fields of a body are
``<u32 length>`` and bytes each.
"""

import _signal as signal  # type: ignore[import-not-found]
import posix
import sys
import time
from _socket import AF_INET, SCM_RIGHTS, SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET, socket
from _struct import Struct  # type: ignore[import-not-found]
from errno import E2BIG, EACCES, EAGAIN, EFBIG, EINVAL, EISDIR, ENOENT, ENOEXEC, ENOTDIR
from resource import prlimit, setrlimit
from select import EPOLLIN, epoll

HEADER = Struct("<IBI")
SIZE = Struct("<I")
CONFIG, RUN, STDIN, CANCEL, READ, OPEN, DATA, DONE, LIST, ABORT = range(1, 11)
READY, OUT, ERR, EXIT, CHUNK, OK, ENTRIES, FAIL = range(32, 40)
CHUNK_BYTES = 1 << 18
MAX_ENTRIES = 100_000
MARK = b"\n[... output cut here: only its head and its tail are kept ...]\n"
RLIMIT_RTTIME = 15
TAG_TOP = 1 << 62
RELAY_PORT = 8800
KILL_PATIENCE_S = 1.0
EXEC_FAILED, EXEC_MISSING, TIMED_OUT = 126, 127, 124


def pack(*fields):
    """The body that holds these byte strings."""
    return b"".join([SIZE.pack(len(f)) + f for f in fields])


def unpack(body):
    """The byte strings of a body."""
    fields, at = [], 0
    while at < len(body):
        end = at + 4 + SIZE.unpack_from(body, at)[0]
        fields.append(body[at + 4 : end])
        at = end
    return fields


class Capture:
    """Head and tail of a stream within ``limit`` bytes, and the count of all that was written."""

    def __init__(self, limit):
        self.limit, self.total = limit, 0
        self.small = limit < 8 * len(MARK)  # no room for a mark: the head alone
        self.head_room = limit if self.small else limit // 2
        self.tail_room = limit - self.head_room
        self.head, self.tail = bytearray(), b""

    def add(self, data):
        """Take in the next bytes of the stream."""
        self.total += len(data)
        room = self.head_room - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        if data:
            tail = data if len(data) >= self.tail_room else self.tail + data
            self.tail = tail[-self.tail_room :] if self.tail_room else b""

    def bytes(self):
        """The whole stream, or its head, the mark and its tail, cut at line ends that are near."""
        if self.total <= self.limit:
            return bytes(self.head) + self.tail
        if self.small:
            return bytes(self.head)
        head = bytes(self.head[: self.head_room - len(MARK)])
        line_end = head.rfind(b"\n", len(head) * 3 // 4)
        line_start = self.tail.find(b"\n", 0, len(self.tail) // 4) + 1
        return (head[:line_end] if line_end > 0 else head) + MARK + self.tail[line_start:]


class Command:
    """A started command: its leader, its streams, its deadline."""

    def __init__(self, number, tag, pid, streams, limit, deadline):
        self.id, self.tag, self.pid, self.deadline = number, tag, pid, deadline
        self.started = time.monotonic()
        self.status = None
        self.timed_out = False
        self.streams = {fd: (kind, Capture(limit)) for fd, kind in zip(streams, (OUT, ERR))}
        self.open = set(streams)


class Agent:
    """The event loop. One thread; nothing in it waits on what a command controls."""

    def __init__(self, control_fd, prctl):
        self.control = socket(fileno=control_fd)
        self.control_fd = control_fd
        self.prctl = prctl
        self.buffer = bytearray()
        self.commands = {}
        self.by_fd = {}
        self.stdin = {}
        self.writes = {}
        self.limits = []
        self.next_tag = TAG_TOP
        self.poll = epoll()
        self.wake, wake_write = posix.pipe2(posix.O_CLOEXEC | posix.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self.poll.register(control_fd, EPOLLIN)
        self.poll.register(self.wake, EPOLLIN)
        self.handlers = {
            CONFIG: self.configure, RUN: self.run, STDIN: self.take_stdin, CANCEL: self.cancel,
            READ: self.read, OPEN: self.write_open, DATA: self.write_data, DONE: self.write_done,
            LIST: self.list, ABORT: self.write_abort,
        }  # fmt: skip

    # -- frames -----------------------------------------------------------------------------------------
    def send(self, kind, number, body=b""):
        """One frame to the host, which always drains."""
        self.control.sendall(HEADER.pack(len(body), kind, number) + body)

    def fail(self, number, error):
        """An OSError as a frame."""
        name = error.filename if isinstance(error.filename, bytes) else b""
        self.send(FAIL, number, pack(b"%d" % (error.errno or EINVAL), name))

    def serve(self):
        """Until the host's end closes: then process 1 ends, and with it the whole sandbox."""
        while True:
            for fd, _ in self.poll.poll(self.patience()):
                if fd == self.control_fd:
                    if not self.take():
                        return
                elif fd == self.wake:
                    posix.read(self.wake, 4096)
                    self.reap()
                elif fd in self.by_fd:
                    self.drain(fd)
            now = time.monotonic()
            for command in [c for c in self.commands.values() if c.deadline <= now]:
                self.end(command)

    def patience(self):
        """Seconds until the next deadline; -1 for none."""
        if not self.commands:
            return -1
        return max(0.0, min(c.deadline for c in self.commands.values()) - time.monotonic())

    def take(self):
        """Read from the host and handle each whole frame; False when it has gone."""
        data = self.control.recv(1 << 18)
        if not data:
            return False
        self.buffer += data
        at = 0
        while len(self.buffer) - at >= HEADER.size:
            length, kind, number = HEADER.unpack_from(self.buffer, at)
            end = at + HEADER.size + length
            if end > len(self.buffer):
                break
            body = bytes(self.buffer[at + HEADER.size : end])
            at = end
            try:
                self.handlers[kind](number, body)
            except OSError as error:
                self.fail(number, error)
        del self.buffer[:at]
        return True

    def configure(self, number, body):
        """Work folder, relay, limits of each command; answers READY (with the relay's listener)."""
        workdir, relay, *limits = unpack(body)
        posix.chdir(workdir)
        self.limits = [(int(r), int(v)) for r, v in zip(limits[::2], limits[1::2])]
        if relay != b"1":
            self.send(READY, number)
            return
        listener = socket(AF_INET, SOCK_STREAM)
        listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", RELAY_PORT))
        listener.listen(128)
        # A socket stays in the network namespace where it was made: the host accepts on this one itself.
        self.control.sendmsg(
            [HEADER.pack(0, READY, number)],
            [(SOL_SOCKET, SCM_RIGHTS, SIZE.pack(listener.fileno()))],
        )
        listener.close()

    # -- commands ---------------------------------------------------------------------------------------
    def take_stdin(self, number, body):
        """A piece of the standard input of a command to come; kept in memory of the sandbox."""
        if number not in self.stdin:
            self.stdin[number] = posix.memfd_create("stdin", posix.MFD_CLOEXEC)
        write_all(self.stdin[number], body)

    def run(self, number, body):
        """Start a command; EXIT (after OUT and ERR) or FAIL answers it later."""
        timeout, limit, cwd, count, *rest = unpack(body)
        argv, pairs = rest[: int(count)], rest[int(count) :]
        env = dict(zip(pairs[::2], pairs[1::2]))
        stdin = self.stdin.pop(number, None)
        if stdin is None:
            stdin = posix.open("/dev/null", posix.O_RDONLY | posix.O_CLOEXEC)
        else:
            posix.lseek(stdin, 0, 0)
        self.next_tag -= 1
        tag = self.next_tag
        fds = [stdin]
        try:
            out, out_w = posix.pipe2(posix.O_CLOEXEC)
            fds += [out, out_w]
            err, err_w = posix.pipe2(posix.O_CLOEXEC)
            fds += [err, err_w]
            fail, fail_w = posix.pipe2(posix.O_CLOEXEC)
            fds += [fail, fail_w]
            pid = posix.fork()
            if pid == 0:
                self.become((stdin, out_w, err_w), fail_w, tag, cwd, argv, env)
        except OSError as error:
            close_all(fds)
            if error.errno != EAGAIN:
                raise
            self.not_started(number, EXEC_FAILED, b"cannot fork: the limit of processes is reached")
            return
        close_all((stdin, out_w, err_w, fail_w))
        report = posix.read(fail, 64)
        posix.close(fail)
        if report:
            close_all((out, err))
            self.exec_failed(number, report, cwd, argv)
            return
        posix.set_blocking(out, False)
        posix.set_blocking(err, False)
        deadline = time.monotonic() + int(timeout) / 1000.0
        command = Command(number, tag, pid, (out, err), int(limit), deadline)
        self.commands[number] = command
        for fd in (out, err):
            self.by_fd[fd] = command
            self.poll.register(fd, EPOLLIN)

    def become(self, streams, fail, tag, cwd, argv, env):
        """In the child: limits, streams, folder, then the program. Never returns."""
        stage = b"s"
        try:
            posix.close(self.control_fd)
            posix.setsid()
            for target, fd in enumerate(streams):
                posix.dup2(fd, target, True)
            # Process 1 cannot be read or traced (it answers for everyone); its child may be, from here on.
            self.prctl(1)
            prefer_as_oom_victim()
            for signum in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
                signal.signal(signum, signal.SIG_DFL)
            setrlimit(RLIMIT_RTTIME, (tag, tag))
            for resource, value in self.limits:
                setrlimit(resource, (value, value))
            stage = b"c"
            posix.chdir(cwd)
            stage = b"x"
            execute(argv, env)
        except OSError as error:
            posix.write(fail, stage + b"%d" % (error.errno or EINVAL))
        except BaseException:
            posix.write(fail, stage + b"%d" % EINVAL)
        posix._exit(EXEC_MISSING)

    def exec_failed(self, number, report, cwd, argv):
        """As a shell says it: 127 for a missing program, 126 for one that cannot be run."""
        stage, code = report[:1], int(report[1:])
        if stage == b"x" and code in (ENOENT, ENOTDIR):
            self.not_started(number, EXEC_MISSING, argv[0] + b": not found")
        elif stage == b"x" and code in (EACCES, ENOEXEC, EISDIR):
            self.not_started(number, EXEC_FAILED, argv[0] + b": cannot be executed")
        elif stage == b"x" and code == E2BIG:
            self.send(FAIL, number, pack(b"%d" % code, b""))
        else:
            self.send(FAIL, number, pack(b"%d" % code, cwd if stage == b"c" else argv[0]))

    def not_started(self, number, status, why):
        """The result of a command that never ran."""
        text = b"dressage: " + why[:400] + b"\n"
        self.send(ERR, number, text)
        self.send(EXIT, number, pack(b"%d" % status, b"0", b"0", b"%d" % len(text), b"0"))

    def drain(self, fd):
        """Take what a stream has now, a bounded amount, so that neighbours get their turn."""
        command = self.by_fd[fd]
        _, capture = command.streams[fd]
        for _ in range(16):
            try:
                data = posix.read(fd, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self.close_stream(command, fd)
                self.finish(command)
                return
            capture.add(data)

    def close_stream(self, command, fd):
        """No more of this stream."""
        command.open.discard(fd)
        if self.by_fd.pop(fd, None) is not None:
            self.poll.unregister(fd)
            posix.close(fd)

    def reap(self):
        """Collect every dead child: leaders, and orphans that process 1 inherited."""
        leaders = {c.pid: c for c in self.commands.values()}
        while True:
            try:
                pid, status = posix.waitpid(-1, posix.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in leaders:
                command = leaders[pid]
                signaled = posix.WIFSIGNALED(status)
                command.status = 128 + posix.WTERMSIG(status) if signaled else posix.WEXITSTATUS(status)
                self.finish(command)

    def finish(self, command):
        """Answer when the leader is dead and nobody holds its streams any more."""
        if command.status is None or command.open or command.id not in self.commands:
            return
        del self.commands[command.id]
        counts = []
        for kind, capture in command.streams.values():
            kept = capture.bytes()
            counts.append(b"%d" % capture.total)
            for at in range(0, len(kept), CHUNK_BYTES):
                self.send(kind, command.id, kept[at : at + CHUNK_BYTES])
        status = TIMED_OUT if command.timed_out else command.status
        micros = b"%d" % int((time.monotonic() - command.started) * 1e6)
        timed_out = b"1" if command.timed_out else b"0"
        self.send(EXIT, command.id, pack(b"%d" % status, timed_out, *counts, micros))

    def end(self, command):
        """Its time is over: the whole tree dies, what it wrote so far is the result."""
        command.timed_out = True
        command.deadline = float("inf")
        gone = self.kill_tree(command)
        self.reap()
        for fd in list(command.open):
            if fd in self.by_fd:
                self.drain(fd)
            self.close_stream(command, fd)
        if command.status is None and not gone:
            command.status = TIMED_OUT
        self.finish(command)

    def cancel(self, number, _body):
        """The caller went away: the same end, its answer is not read."""
        if number in self.commands:
            self.end(self.commands[number])

    def kill_tree(self, command):
        """Kill all that carry the command's mark, and all whose mark was tampered with."""
        give_up = time.monotonic() + KILL_PATIENCE_S
        rounds = 0
        while True:
            victims = [pid for pid, tag in marks() if tag == command.tag or tag < self.next_tag]
            if not victims:
                return True
            # Stopping first keeps a fork bomb from growing between two looks at /proc.
            for signum in (signal.SIGSTOP, signal.SIGKILL) if rounds % 2 == 0 else (signal.SIGKILL,):
                for pid in victims:
                    try_kill(pid, signum)
            self.reap()
            rounds += 1
            if time.monotonic() > give_up:
                try_kill(-1, signal.SIGKILL)
                return False
            if rounds > 2:
                time.sleep(0.001)

    # -- files ------------------------------------------------------------------------------------------
    def read(self, number, body):
        """CHUNKs and OK: at most ``size`` bytes of a regular file from ``offset``."""
        path, offset, size = unpack(body)
        fd = posix.open(path, posix.O_RDONLY | posix.O_NONBLOCK | posix.O_CLOEXEC | posix.O_NOCTTY)
        try:
            kind = posix.fstat(fd).st_mode & 0o170000
            if kind != 0o100000:
                raise OSError(EISDIR if kind == 0o040000 else EINVAL, "not a regular file", path)
            at, left = int(offset), int(size)
            while left > 0:
                data = posix.pread(fd, min(left, CHUNK_BYTES), at)
                if not data:
                    break
                self.send(CHUNK, number, data)
                at, left = at + len(data), left - len(data)
        finally:
            posix.close(fd)
        self.send(OK, number, b"%d" % (at - int(offset)))

    def write_open(self, number, body):
        """Begin a file: parents are made, bytes go to a new file beside the target."""
        path, mode = unpack(body)
        if path.endswith(b"/") or not path:
            raise OSError(EISDIR if path else EINVAL, "not a file name", path)
        folder, slash, _ = path.rpartition(b"/")
        if folder:
            make_folders(folder)
        part = (folder + slash if slash else b"") + b".dressage-%d.part" % number
        flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC | posix.O_NOFOLLOW
        self.writes[number] = [posix.open(part, flags, 0o600), part, path, int(mode), 0]

    def write_data(self, number, body):
        """The next bytes of a file. Those of a failed one are dropped: FAIL was sent already."""
        if number not in self.writes:
            return
        try:
            write_all(self.writes[number][0], body)
            self.writes[number][4] += len(body)
        except OSError:
            self.write_abort(number, b"")
            raise

    def write_done(self, number, _body):
        """The file takes its name at once, whole; a link or FIFO of that name is replaced, not followed."""
        if number not in self.writes:
            return
        fd, part, path, mode, written = self.writes[number]
        try:
            posix.chmod(fd, mode)
            posix.rename(part, path)
        except OSError as error:
            self.write_abort(number, b"")
            raise OSError(error.errno, "cannot be written", path) from None
        del self.writes[number]
        posix.close(fd)
        self.send(OK, number, b"%d" % written)

    def write_abort(self, number, _body):
        """Drop a begun file."""
        if number in self.writes:
            fd, part, *_ = self.writes.pop(number)
            posix.close(fd)
            posix.unlink(part)

    def list(self, number, body):
        """ENTRIES and OK: kind, size and name of each entry."""
        count, fields = 0, []
        with posix.scandir(body) as entries:
            for entry in entries:
                count += 1
                if count > MAX_ENTRIES:
                    raise OSError(EFBIG, "too many entries", body)
                fields += describe(entry)
                if len(fields) > 3000:
                    self.send(ENTRIES, number, pack(*fields))
                    fields = []
        self.send(ENTRIES, number, pack(*fields))
        self.send(OK, number, b"%d" % count)


def describe(entry):
    """Kind, size and name of a directory entry."""
    kind, size = b"other", b"0"
    if entry.is_symlink():
        kind = b"symlink"
    elif entry.is_dir(follow_symlinks=False):
        kind = b"dir"
    else:
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # removed since the folder was read
            return [kind, size, entry.name]
        if status.st_mode & 0o170000 == 0o100000:
            kind, size = b"file", b"%d" % status.st_size
    return [kind, size, entry.name]


def marks():
    """Pairs of process and command mark, process 1 left out."""
    found = []
    for name in posix.listdir("/proc"):
        if not name.isdigit() or name == "1":
            continue
        pid = int(name)
        try:
            found.append((pid, prlimit(pid, RLIMIT_RTTIME)[1]))
        except (ProcessLookupError, PermissionError):  # died meanwhile
            continue
    return [(pid, tag if tag >= 0 else TAG_TOP) for pid, tag in found]


def try_kill(pid, signum):
    """Signal a process that may have died meanwhile."""
    try:
        posix.kill(pid, signum)
    except ProcessLookupError:
        return


def close_all(fds):
    """Close each."""
    for fd in fds:
        posix.close(fd)


def write_all(fd, data):
    """Write every byte."""
    view = memoryview(data)
    while view:
        view = view[posix.write(fd, view) :]


def make_folders(path):
    """Make a folder and its parents."""
    at = 0
    while at >= 0:
        at = path.find(b"/", at + 1)
        part = path if at < 0 else path[:at]
        if part:
            try:
                posix.mkdir(part, 0o755)
            except FileExistsError:
                continue
            except OSError:  # a read-only parent that exists already answers EROFS, not EEXIST
                if posix.stat(part).st_mode & 0o170000 != 0o040000:
                    raise


def prefer_as_oom_victim():
    """So that memory pressure takes the command and not process 1."""
    fd = posix.open("/proc/self/oom_score_adj", posix.O_WRONLY | posix.O_CLOEXEC)
    posix.write(fd, b"500")
    posix.close(fd)


def execute(argv, env):
    """Replace this process; a bare name is looked up on the command's own PATH."""
    program = argv[0]
    if b"/" in program:
        posix.execve(program, argv, env)
    missing = OSError(ENOENT, "not found", program)
    for folder in env.get(b"PATH", b"/usr/bin:/bin").split(b":"):
        try:
            posix.execve((folder or b".") + b"/" + program, argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            missing = error
    raise missing


def load_prctl():
    """A function that sets whether this process may be read and traced (PR_SET_DUMPABLE)."""
    import _ctypes  # the ctypes package itself costs three times as much to import

    address = _ctypes.dlsym(_ctypes.dlopen(None, 2), "prctl")
    return lambda flag: _ctypes.call_function(address, (4, flag, 0, 0, 0))


def main():
    """Argument: the number of the control socket's descriptor."""
    control = int(sys.argv[1])
    posix.closerange(3, control)
    posix.closerange(control + 1, 1 << 16)
    posix.set_inheritable(control, False)
    prctl = load_prctl()
    prctl(0)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    Agent(control, prctl).serve()
    posix._exit(0)


if __name__ == "__main__":
    main()
