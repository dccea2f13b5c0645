"""File access inside the sandbox's own namespaces: bounded, streamed, and blocked by nothing it meets."""

import posix
from errno import EBADF, EFBIG, EINVAL, EISDIR, EMFILE

from .system import write_all
from .wire import CHUNK, CHUNK_BYTES, ENTRIES, MAX_DOWNLOADS, MAX_ENTRIES, OK, pack, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_TYPE, _FILE, _FOLDER = 0o170000, 0o100000, 0o040000


class Upload:
    """A file that is being written: its bytes are in ``part`` until they are complete."""

    def __init__(self, fd: int, part: bytes, path: bytes, mode: int) -> None:
        self.fd, self.part, self.path, self.mode = fd, part, path, mode
        self.size = 0


class Files:
    """Reads, writes and lists. ``send`` takes kind, call and body of an answer."""

    def __init__(self, send: "Callable[[int, int, bytes], None]") -> None:
        self.send = send
        self.uploads: dict[int, Upload] = {}
        self.downloads: dict[int, int] = {}

    def read(self, call: int, body: bytes) -> None:
        """CHUNKs and OK: at most ``size`` bytes of a regular file from ``offset``."""
        path, offset, size = unpack(body)
        fd = open_regular(path)
        try:
            self.send_part(call, fd, int(offset), int(size))
        finally:
            posix.close(fd)

    def send_part(self, call: int, fd: int, start: int, size: int) -> None:
        """CHUNKs and OK."""
        at, left = start, size
        while left > 0:
            data = posix.pread(fd, min(left, CHUNK_BYTES), at)
            if not data:
                break
            self.send(CHUNK, call, data)
            at, left = at + len(data), left - len(data)
        self.send(OK, call, b"%d" % (at - start))

    def fetch(self, call: int, path: bytes) -> None:
        """OK with its size: keep a file open, so that all its parts come from one file."""
        if len(self.downloads) >= MAX_DOWNLOADS:
            raise OSError(EMFILE, "too many downloads", path)
        self.downloads[call] = open_regular(path)
        self.send(OK, call, b"%d" % posix.fstat(self.downloads[call]).st_size)

    def pull(self, call: int, body: bytes) -> None:
        """CHUNKs and OK: a part of the file that call ``handle`` opened."""
        handle, offset, size = unpack(body)
        fd = self.downloads.get(int(handle))
        if fd is None:
            raise OSError(EBADF, "no such download")
        self.send_part(call, fd, int(offset), int(size))

    def release(self, call: int, _body: bytes) -> None:
        """The file that this call opened is not needed any more."""
        fd = self.downloads.pop(call, -1)
        if fd >= 0:
            posix.close(fd)

    def open(self, call: int, body: bytes) -> None:
        """Begin a file: parents are made, bytes go to a new file beside the target."""
        path, mode = unpack(body)
        if path.endswith(b"/"):
            raise OSError(EISDIR, "not a file name", path)
        folder, slash, _ = path.rpartition(b"/")
        if folder:
            make_folders(folder)
        part = folder + slash + b".dressage-%d.part" % call
        flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC | posix.O_NOFOLLOW
        try:
            fd = posix.open(part, flags, 0o600)
        except OSError as error:
            raise OSError(error.errno, "cannot be written", path) from None  # no name of ours, which differs
        self.uploads[call] = Upload(fd, part, path, int(mode))

    def data(self, call: int, body: bytes) -> None:
        """The next bytes of a file. Those of a failed one are dropped: its failure was sent already."""
        upload = self.uploads.get(call)
        if upload is None:
            return
        try:
            write_all(upload.fd, body)
        except OSError:
            self.abort(call, b"")
            raise
        upload.size += len(body)

    def done(self, call: int, _body: bytes) -> None:
        """The file takes its name at once, whole; a link or FIFO of that name is replaced, not followed."""
        upload = self.uploads.get(call)
        if upload is None:
            return
        try:
            posix.chmod(upload.fd, upload.mode)
            posix.rename(upload.part, upload.path)
        except OSError as error:
            self.abort(call, b"")
            raise OSError(error.errno, "cannot be written", upload.path) from None
        del self.uploads[call]
        posix.close(upload.fd)
        self.send(OK, call, b"%d" % upload.size)

    def abort(self, call: int, _body: bytes) -> None:
        """Drop a begun file."""
        upload = self.uploads.pop(call, None)
        if upload is not None:
            posix.close(upload.fd)
            try:
                posix.unlink(upload.part)
            except FileNotFoundError:  # a command inside removed it
                return

    def list(self, call: int, body: bytes) -> None:
        """ENTRIES and OK: kind, size and name of each entry."""
        count, fields = 0, []
        with posix.scandir(body) as entries:
            for entry in entries:
                count += 1
                if count > MAX_ENTRIES:
                    raise OSError(EFBIG, "too many entries", body)
                fields += describe(entry)
                if len(fields) > 3000:
                    self.send(ENTRIES, call, pack(*fields))
                    fields = []
        self.send(ENTRIES, call, pack(*fields))
        self.send(OK, call, b"%d" % count)


def open_regular(path: bytes) -> int:
    """A descriptor of a regular file; nothing else is waited for or read."""
    fd = posix.open(path, posix.O_RDONLY | posix.O_NONBLOCK | posix.O_CLOEXEC | posix.O_NOCTTY)
    kind = posix.fstat(fd).st_mode & _TYPE
    if kind != _FILE:
        posix.close(fd)
        raise OSError(EISDIR if kind == _FOLDER else EINVAL, "not a regular file", path)
    return fd


def describe(entry: "posix.DirEntry[bytes]") -> "list[bytes]":
    """Kind, size and name of a folder's entry."""
    if entry.is_symlink():
        return [b"symlink", b"0", entry.name]
    if entry.is_dir(follow_symlinks=False):
        return [b"dir", b"0", entry.name]
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:  # removed since the folder was read
        return [b"other", b"0", entry.name]
    if status.st_mode & _TYPE != _FILE:
        return [b"other", b"0", entry.name]
    return [b"file", b"%d" % status.st_size, entry.name]


def make_folders(path: bytes) -> None:
    """Make a folder, and its parents where they are missing."""
    try:
        posix.mkdir(path, 0o755)
        return
    except FileExistsError:
        return
    except FileNotFoundError:  # a parent
        at = 0
    while at >= 0:
        at = path.find(b"/", at + 1)
        part = path if at < 0 else path[:at]
        try:
            posix.mkdir(part, 0o755)
        except FileExistsError:
            continue
