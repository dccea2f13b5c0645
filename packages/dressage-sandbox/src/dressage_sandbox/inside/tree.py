"""A folder as a tar archive and back, in a child of the agent, so that the agent itself never waits.

The archive is written to, and read from, a descriptor that the host hands over: the host stores bytes and
looks at none of them. Owners are left out; sockets, FIFOs and devices are skipped; hard links become copies.
"""

import posix
from _stat import S_IMODE, S_ISDIR, S_ISLNK, S_ISREG
from errno import EBADMSG, EINVAL

from .files import make_folders
from .system import try_kill, write_all
from .wire import FAIL, OK, pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = 512
PIECE = 1 << 20
LONGEST_PATH = 1024
"""Longer ones are walked to in pieces: the kernel takes no more than 4,095 bytes at once."""


class Trees:
    """Packs and unpacks. ``take_fd`` gives the descriptor that the host sent for a call."""

    def __init__(
        self,
        send: "Callable[[int, int, bytes], None]",
        take_fd: "Callable[[int], int]",
        helpers: "dict[int, Callable[[int], None]]",
    ) -> None:
        self.send, self.take_fd, self.helpers = send, take_fd, helpers
        self.working: dict[int, int] = {}

    def pack(self, call: int, path: bytes) -> None:
        """Write the folder's archive to the host's descriptor; OK or FAIL when it is done."""
        self.work(call, path, write_locked_archive)

    def unpack(self, call: int, path: bytes) -> None:
        """Fill the folder from the host's descriptor; OK or FAIL when it is done."""
        self.work(call, path, read_archive)

    def work(self, call: int, path: bytes, work: "Callable[[int, bytes], None]") -> None:
        """Start a child that does it."""
        fd = self.take_fd(call)
        try:
            pid = posix.fork()
            if pid == 0:
                code = EINVAL
                try:
                    work(fd, path)
                    code = 0
                except OSError as error:
                    code = error.errno or EINVAL
                finally:
                    posix._exit(code & 0xFF)
        finally:
            posix.close(fd)
        self.working[call] = pid

        def ended(status: int) -> None:
            self.working.pop(call, None)
            if status:
                self.send(FAIL, call, pack(b"%d" % status, path))
            else:
                self.send(OK, call, b"0")

        self.helpers[pid] = ended

    def abort(self, call: int, _body: bytes) -> None:
        """The caller went away."""
        if call in self.working:
            try_kill(self.working[call], 9)


class Walk:
    """Goes about a tree of which some paths are longer than the kernel takes, by changing the current folder.

    From where it is, and not from the root: the steps to the next place of a deep tree are few.
    """

    def __init__(self) -> None:
        self.at: bytes | None = None

    def near(self, place: bytes) -> bytes:
        """``place``, absolute, as it is; or its last part, from its folder, where it is too long."""
        if len(place) <= LONGEST_PATH:
            return place
        folder, _, name = place.rpartition(b"/")
        if self.at is None:
            posix.chdir(b"/")
            self.at = b""
        while not (folder + b"/").startswith(self.at + b"/"):
            posix.chdir(b"..")
            self.at = self.at.rpartition(b"/")[0]
        below, self.at = folder[len(self.at) + 1 :], None  # a failure on the way leaves it nowhere
        while below:
            piece = below[:LONGEST_PATH]
            if len(piece) < len(below):
                piece = piece[: piece.rindex(b"/")]
            posix.chdir(b"./" + piece)
            below = below[len(piece) + 1 :]
        self.at = folder
        return name


def absolute(folder: bytes) -> bytes:
    """From the root on."""
    return folder if folder.startswith(b"/") else posix.getcwdb().rstrip(b"/") + b"/" + folder


def write_locked_archive(fd: int, folder: bytes) -> None:
    """As ``write_archive``, of a folder of which this user may have made parts unreadable for itself."""
    locked: list[tuple[bytes, int]] = []
    try:
        write_archive(fd, folder, locked)
    finally:
        walk = Walk()
        for place, mode in reversed(locked):
            try_chmod(walk, place, mode)


def try_chmod(walk: Walk, place: bytes, mode: int) -> None:
    """Of what is still there, and this user's."""
    try:
        posix.chmod(walk.near(place), mode)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return


def unlock(walk: Walk, place: bytes, status: "posix.stat_result", locked: "list[tuple[bytes, int]]") -> None:
    """Let this user read an entry of its own, and note the mode that it had."""
    need = 0o500 if S_ISDIR(status.st_mode) else 0o400 if S_ISREG(status.st_mode) else 0
    mode = S_IMODE(status.st_mode)
    if mode & need != need:
        try_chmod(walk, place, mode | need)
        locked.append((place, mode))


def write_archive(fd: int, folder: bytes, locked: "list[tuple[bytes, int]] | None" = None) -> None:
    """Every entry below ``folder``, parents first; what vanishes meanwhile is left out."""
    folder, walk = absolute(folder), Walk()
    if locked is not None:
        unlock(walk, folder, posix.lstat(folder), locked)
    posix.listdir(folder)  # what is missing or no folder is an error, and not an empty archive
    todo = [(folder, b"")]
    while todo:
        place, name = todo.pop()
        try:
            here = walk.near(place)
            status = posix.lstat(here)
            if locked is not None:
                unlock(walk, place, status, locked)
            if S_ISDIR(status.st_mode):
                names = sorted(posix.listdir(here), reverse=True)
                todo += [(place + b"/" + n, (name + b"/" if name else b"") + n) for n in names]
                if name:
                    write_all(fd, header(name + b"/", status, b"5", 0, b""))
            elif S_ISLNK(status.st_mode):
                write_all(fd, header(name, status, b"2", 0, posix.readlink(here)))
            elif S_ISREG(status.st_mode):
                write_file(fd, here, name, status)
        except (FileNotFoundError, NotADirectoryError):
            continue
    write_all(fd, bytes(2 * BLOCK))


def write_file(fd: int, place: bytes, name: bytes, entry: "posix.stat_result") -> None:
    """Exactly as many bytes as the header says, whatever happens to the file meanwhile."""
    source = posix.open(place, posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_CLOEXEC)
    try:
        status = posix.fstat(source)
        if not S_ISREG(status.st_mode):
            return
        write_all(fd, header(name, entry, b"0", status.st_size, b""))
        at = 0
        while at < status.st_size:
            sent = posix.sendfile(fd, source, at, min(PIECE, status.st_size - at))
            if sent == 0:  # it was cut
                break
            at += sent
        while at < status.st_size:
            at += posix.write(fd, bytes(min(PIECE, status.st_size - at)))
        write_all(fd, bytes(-status.st_size % BLOCK))
    finally:
        posix.close(source)


def header(name: bytes, status: "posix.stat_result", kind: bytes, size: int, target: bytes) -> bytes:
    """Blocks of one entry, as GNU tar writes them, with long names in entries of their own."""
    before = b""
    for long, tag in ((name, b"L"), (target, b"K")):
        if len(long) > 100:
            text = long + b"\0"
            before += (
                block(b"././@LongLink", 0o644, len(text), 0, tag, b"") + text + bytes(-len(text) % BLOCK)
            )
    return before + block(name[:100], S_IMODE(status.st_mode), size, int(status.st_mtime), kind, target[:100])


def block(name: bytes, mode: int, size: int, mtime: int, kind: bytes, target: bytes) -> bytes:
    """One header block."""
    number = b"%011o\0" % size if size < 8**11 else b"\x80" + size.to_bytes(11, "big")
    head = name.ljust(100, b"\0") + b"%07o\0" % mode + b"0001750\0" * 2 + number
    head += b"%011o\0" % max(0, mtime)
    tail = kind + target.ljust(100, b"\0") + b"ustar  \0"
    total = sum(head) + 8 * 32 + sum(tail)
    return (head + b"%06o\0 " % total + tail).ljust(BLOCK, b"\0")


def read_archive(fd: int, folder: bytes) -> None:
    """What ``write_archive`` wrote; modes last, so that a folder without write permission can be filled."""
    at, long, folders, folder, walk = 0, {}, [], absolute(folder), Walk()
    while True:
        head = posix.pread(fd, BLOCK, at)
        if len(head) < BLOCK:
            raise OSError(EBADMSG, "the archive is cut off")
        if not head[0]:
            break
        size = number(head[124:136])
        kind, at = head[156:157], at + BLOCK
        if kind in (b"L", b"K"):
            long[kind] = posix.pread(fd, size, at).rstrip(b"\0")
        else:
            name = long.pop(b"L", head[:100].rstrip(b"\0"))
            target = long.pop(b"K", head[157:257].rstrip(b"\0"))
            place = folder + b"/" + name.rstrip(b"/")
            mode, mtime = number(head[100:108]), number(head[136:148])
            if kind == b"5":
                make_folders(walk.near(place))
                folders.append((place, mode, mtime))
            elif kind == b"2":
                posix.symlink(target, walk.near(place))
            else:
                read_file(fd, at, size, walk.near(place), mode, mtime)
        at += size + -size % BLOCK
    for place, mode, mtime in reversed(folders):
        here = walk.near(place)
        posix.utime(here, (mtime, mtime))
        posix.chmod(here, mode)


def read_file(fd: int, at: int, size: int, place: bytes, mode: int, mtime: int) -> None:
    """One file's bytes."""
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC
    target = posix.open(place, flags, 0o600)
    try:
        end = at + size
        while at < end:
            sent = posix.sendfile(target, fd, at, min(PIECE, end - at))
            if sent == 0:
                raise OSError(EBADMSG, "the archive is cut off")
            at += sent
        posix.utime(target, (mtime, mtime))
        posix.chmod(target, mode)
    finally:
        posix.close(target)


def number(field: bytes) -> int:
    """Octal digits, or a big-endian number after 0x80."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big")
    return int(field.rstrip(b"\0 ") or b"0", 8)
