"""Whole files and folders between host and inside, in pieces, with nothing held in memory."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import secrets
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .channel import Channel
from .errors import FileTooLarge, InvalidSpec, NotARegularFile, SandboxGone, file_error
from .inside import wire
from .requests import numbers_of, path_of

__all__ = ["download", "pack", "unpack", "upload"]

_PIECE = 1 << 20
_PIPE = 1 << 20
STALL_S = 30.0
"""How long a folder's bytes may fail to come: what packs it is a process that commands inside can stop."""
_SLOWEST = 4 << 20
"""Bytes a second of the slowest unpacking."""


async def upload(channel: Channel, source: Path, path: str, mode: int) -> int:
    """See ``protocol.Sandbox.upload``."""
    fd = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise InvalidSpec(f"source: {source} is not a regular file")
        call = channel.start(0)
        try:
            channel.send(wire.OPEN, call, wire.pack(path_of(path), b"%d" % (mode & 0o7777)))
            sent = 0
            while not call.done.done() and (piece := os.read(fd, _PIECE)):
                await channel.stream(wire.DATA, call, piece)
                sent += len(piece)
            channel.send(wire.DONE, call)
            (size,) = numbers_of(wire.pack(await channel.answer(call, wire.ABORT)), 1)
        finally:
            if not call.done.done():
                channel.send(wire.ABORT, call)
            channel.forget(call)
    finally:
        os.close(fd)
    if size != sent:
        raise SandboxGone(f"{sent} bytes were sent for {path!r} and {size} written")
    return size


async def download(channel: Channel, path: str, target: Path, max_bytes: int) -> int:
    """See ``protocol.Sandbox.download``. All parts are of the file that had the name at the beginning."""
    if max_bytes < 0:
        raise InvalidSpec("max_bytes must not be negative")
    opened = channel.start(0)
    try:
        channel.send(wire.FETCH, opened, path_of(path))
        (size,) = numbers_of(wire.pack(await channel.answer(opened, wire.ABORT)), 1)
        if size > max_bytes:
            raise FileTooLarge(errno.EFBIG, f"{size} bytes, and max_bytes={max_bytes}", path)
        with _new_file(target) as fd:
            at = 0
            while at < size and (piece := await _pull(channel, opened.number, at, min(_PIECE, size - at))):
                if piece.count(0) != len(piece):  # a hole stays a hole
                    os.pwrite(fd, piece, at)
                at += len(piece)
            os.ftruncate(fd, at)
        return at
    finally:
        channel.send(wire.RELEASE, opened)


async def _pull(channel: Channel, handle: int, at: int, size: int) -> bytes:
    call = channel.start(size)
    channel.send(wire.PULL, call, wire.pack(b"%d" % handle, b"%d" % at, b"%d" % size))
    (announced,) = numbers_of(wire.pack(await channel.answer(call, wire.ABORT)), 1)
    data = call.joined(wire.CHUNK)
    if len(data) != announced:
        raise SandboxGone(f"the sandbox announced {announced} bytes and sent {len(data)}")
    return data


@contextmanager
def _new_file(target: Path) -> Iterator[int]:
    """A new file beside ``target`` that takes its name at the end, whole; a link there is replaced."""
    part = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        yield fd
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


async def pack(channel: Channel, door: socket.socket, path: str, target: Path, max_bytes: int) -> int:
    """Write the folder ``path`` of the inside to ``target`` as a tar archive; returns the archive's bytes.

    The host stores the bytes and looks at none. Sockets, FIFOs, devices and owners are left out.

    Raises:
        FileTooLarge: the archive would be longer than ``max_bytes``.
        SandboxFileError: ETIMEDOUT, no byte came for ``STALL_S`` seconds; others as the inside answered.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        with suppress(PermissionError):  # over the user's share of pipe memory: slower, and no more
            fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, _PIPE)
        os.set_blocking(writer, True)
        call = channel.start(0)
        try:
            socket.send_fds(door, [wire.SIZE.pack(call.number)], [writer])
        finally:
            os.close(writer)
        channel.send(wire.PACK, call, path_of(path))
        with _new_file(target) as fd:
            try:
                copied = await _drain(reader, fd, max_bytes, path)
            except BaseException:
                channel.send(wire.ABORT, call)
                channel.forget(call)
                raise
            await channel.answer(call, wire.ABORT)
        return copied
    finally:
        os.close(reader)


async def _drain(reader: int, fd: int, max_bytes: int, path: str) -> int:
    """Move a pipe's bytes into a file until its end, without a thread and without waiting in the loop."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()
    copied = seen = 0

    def more() -> None:
        nonlocal copied
        if ended.done():
            return
        try:
            moved = _move(reader, fd, min(_PIPE, max_bytes + 1 - copied))
        except BlockingIOError:
            return
        except OSError as error:
            ended.set_exception(error)
            return
        copied += moved
        if moved == 0:
            ended.set_result(copied)
        elif copied > max_bytes:
            ended.set_exception(FileTooLarge(errno.EFBIG, f"its archive is over {max_bytes} bytes", path))

    loop.add_reader(reader, more)
    try:
        while not (await asyncio.wait((ended,), timeout=STALL_S))[0]:
            if copied == seen:
                raise file_error(errno.ETIMEDOUT, path)
            seen = copied
        return ended.result()
    finally:
        loop.remove_reader(reader)


def _move(reader: int, fd: int, most: int) -> int:
    """Bytes from a pipe to a file, within the kernel where the file system can."""
    try:
        return os.splice(reader, fd, most)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    data = os.read(reader, most)
    written = 0
    while written < len(data):
        written += os.write(fd, data[written:])
    return written


async def unpack(channel: Channel, door: socket.socket, source: Path, path: str) -> None:
    """Fill the folder ``path`` of the inside from an archive that ``pack`` made.

    Raises:
        SandboxFileError: as the inside answered (ENOSPC, EEXIST, ...), or ETIMEDOUT.
    """
    fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise NotARegularFile(errno.EINVAL, "not a regular file", str(source))
        call = channel.start(0)
        socket.send_fds(door, [wire.SIZE.pack(call.number)], [fd])
    finally:
        os.close(fd)
    channel.send(wire.UNPACK, call, path_of(path))
    try:
        async with asyncio.timeout(STALL_S + status.st_size / _SLOWEST):
            await channel.answer(call, wire.ABORT)
    except TimeoutError:
        raise file_error(errno.ETIMEDOUT, path) from None
