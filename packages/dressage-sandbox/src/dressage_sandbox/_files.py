"""Files of a sandbox."""

from __future__ import annotations

import os
from pathlib import Path

from ._calls import Calls
from .errors import SandboxGone
from .inside import wire
from .protocol import GIB, MIB, DirEntry
from .requests import check_part, numbers_of, path_of
from .transfers import download, pack, unpack, upload

__all__ = ["FileCalls"]

_LIST_BYTES = 64 * MIB


class FileCalls(Calls):
    """``read``, ``write``, ``list``, and copies of whole files and folders."""

    async def read(self, path: str, *, offset: int = 0, max_bytes: int = MIB) -> bytes:
        """At most ``max_bytes`` of a regular file from ``offset``; relative paths start at the workdir.

        Raises:
            SandboxFileNotFound, NotARegularFile, SandboxFileError: as the inside answered.
            SandboxGone: the sandbox ended.
        """
        check_part(offset, max_bytes)
        channel = self._live()
        call = channel.start(max_bytes)
        channel.send(wire.READ, call, wire.pack(path_of(path), b"%d" % offset, b"%d" % max_bytes))
        (size,) = numbers_of(wire.pack(await channel.answer(call, wire.ABORT)), 1)
        data = call.joined(wire.CHUNK)
        if len(data) != size:
            raise SandboxGone(f"the sandbox announced {size} bytes and sent {len(data)}")
        return data

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a whole file, making parent folders. It appears at once, or not at all.

        A link, FIFO or device of that name is replaced, never followed.

        Raises:
            SandboxFileError: as the inside answered (ENOSPC, EROFS, ...).
            SandboxGone: the sandbox ended.
        """
        channel = self._live()
        call = channel.start(0)
        try:
            channel.send(wire.OPEN, call, wire.pack(path_of(path), b"%d" % (mode & 0o7777)))
            await channel.stream(wire.DATA, call, data)
            channel.send(wire.DONE, call)
            (size,) = numbers_of(wire.pack(await channel.answer(call, wire.ABORT)), 1)
        finally:
            if not call.done.done():
                channel.send(wire.ABORT, call)
            channel.forget(call)
        if size != memoryview(data).nbytes:
            raise SandboxGone(f"{memoryview(data).nbytes} bytes were sent for {path!r} and {size} written")

    async def list(self, path: str) -> list[DirEntry]:
        """Entries of a folder, sorted by name; at most 100,000.

        Raises:
            SandboxFileNotFound, SandboxFileError: as the inside answered.
            SandboxGone: the sandbox ended.
        """
        channel = self._live()
        call = channel.start(_LIST_BYTES)
        channel.send(wire.LIST, call, path_of(path))
        await channel.answer(call, wire.ABORT)
        fields = [field for body in call.parts.get(wire.ENTRIES, ()) for field in wire.unpack(body)]
        try:
            entries = [
                DirEntry(os.fsdecode(name), kind.decode("ascii"), int(size))
                for kind, size, name in zip(fields[::3], fields[1::3], fields[2::3], strict=True)
            ]
        except ValueError as error:
            raise SandboxGone("the sandbox sent a broken folder") from error
        return sorted(entries, key=lambda entry: entry.name)

    async def upload(self, source: Path, path: str, *, mode: int = 0o644) -> int:
        """Copy a regular file of the host inside, streamed; it appears whole or not at all.

        Raises:
            SandboxFileError, SandboxGone: as ``write``; OSError: ``source`` cannot be read.
        """
        return await upload(self._live(), source, path, mode)

    async def download(self, path: str, target: Path, *, max_bytes: int = GIB) -> int:
        """Copy a regular file of the inside to ``target``, streamed; holes stay holes.

        Raises:
            FileTooLarge: it has more than ``max_bytes``.
            SandboxFileError, SandboxGone: as ``read``; OSError: ``target`` cannot be written.
        """
        async with self._downloading:  # the agent holds each one's file open, and so many at most
            return await download(self._live(), path, target, max_bytes)

    async def pack(self, path: str, target: Path, *, max_bytes: int = GIB) -> int:
        """Write a folder of the inside to ``target`` as a tar archive; see ``transfers.pack``."""
        channel, door = self._live(), self._door
        assert door is not None
        return await pack(channel, door, path, target, max_bytes)

    async def unpack(self, source: Path, path: str) -> None:
        """Fill a folder of the inside from an archive of ``pack``; see ``transfers.unpack``."""
        channel, door = self._live(), self._door
        assert door is not None
        await unpack(channel, door, source, path)
