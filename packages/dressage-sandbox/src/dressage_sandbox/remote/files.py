"""Files of a remote sandbox, in bounded pieces."""

from __future__ import annotations

import asyncio
import base64
import errno
import os
import posixpath
import secrets
import stat
import tempfile
from pathlib import Path

from ..errors import FileTooLarge, InvalidSpec, SandboxGone
from ..protocol import DirEntry
from ..requests import check_part, path_of
from . import scripts
from .commands import Commands
from .reports import data_of, entries_of
from .transport import Transport
from .work import Life

__all__ = ["Files"]

PIECE = 2 << 20
_INLINE = 32 << 10
"""A file up to this length goes within the script that puts it in its place."""


class Files:
    """Reads and writes as the agent's user, inside."""

    def __init__(self, transport: Transport, commands: Commands, life: Life, workdir: str) -> None:
        self._transport = transport
        self._commands = commands
        self._life = life
        self._workdir = workdir

    async def read(self, path: str, offset: int, max_bytes: int) -> bytes:
        """See ``protocol.Sandbox.read``."""
        check_part(offset, max_bytes)
        data = b""
        while len(data) < max_bytes:
            _, piece = await self._piece(path, offset + len(data), min(PIECE, max_bytes - len(data)))
            data += piece
            if len(piece) < PIECE:
                return data
        return data if max_bytes else (await self._piece(path, offset, 0))[1]

    async def _piece(self, path: str, offset: int, size: int) -> tuple[int, bytes]:
        """The file's size, and a part of it."""
        told, data = data_of(await self._commands.ask(scripts.reads(self._full(path), offset, size)), path)
        if len(data) > size or not told.isdigit():
            raise SandboxGone(f"a broken answer for {path!r}")
        return int(told), data

    async def write(self, path: str, data: bytes, mode: int) -> None:
        """See ``protocol.Sandbox.write``."""
        full, part = self._full(path), _part()
        if len(data) <= _INLINE:
            text = base64.b64encode(data).decode("ascii")
            first = f"printf %s '{text}' | base64 -d >{part} || exit 0\n"
        else:
            await self._put(part, data)
            first = ""
        await self._in_place(first + scripts.puts(full, mode, part), path)

    async def upload(self, source: Path, path: str, mode: int) -> int:
        """See ``protocol.Sandbox.upload``."""
        full, part, sent = self._full(path), _part(), 0
        fd = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise InvalidSpec(f"source: {source} is not a regular file")
            while True:
                piece = await asyncio.to_thread(os.read, fd, PIECE)
                if not piece and sent:
                    break
                await self._append(part, piece, sent)
                sent += len(piece)
                if not piece:
                    break
        finally:
            os.close(fd)
        await self._in_place(scripts.puts(full, mode, part), path)
        return sent

    async def _append(self, part: str, piece: bytes, at: int) -> None:
        if at == 0:
            await self._put(part, piece)
            return
        more = _part()
        await self._put(more, piece)
        answer = await self._commands.ask(f"cat {more} >>{part} && echo D; rm -f {more}")
        if answer.strip() != b"D":
            raise SandboxGone("a part of a file could not be taken in: no space left, perhaps")

    async def download(self, path: str, target: Path, max_bytes: int) -> int:
        """See ``protocol.Sandbox.download``."""
        if max_bytes < 0:
            raise InvalidSpec("max_bytes must not be negative")
        size, piece = await self._piece(path, 0, PIECE)
        fd, name = tempfile.mkstemp(prefix=f".{target.name[:64]}-", dir=target.parent)
        try:
            with os.fdopen(fd, "wb") as file:
                got = 0
                while piece:
                    got += len(piece)
                    if max(size, got) > max_bytes:
                        raise FileTooLarge(errno.EFBIG, os.strerror(errno.EFBIG), path)
                    await asyncio.to_thread(file.write, piece)
                    piece = b"" if got >= size else (await self._piece(path, got, PIECE))[1]
            os.replace(name, target)  # noqa: PTH105
        except BaseException:
            os.unlink(name)  # noqa: PTH108
            raise
        return got

    async def list(self, path: str) -> list[DirEntry]:
        """See ``protocol.Sandbox.list``."""
        return entries_of(await self._commands.ask(scripts.lists(self._full(path))), path)

    async def _put(self, path: str, data: bytes) -> None:
        self._life.check()
        await self._life.result(self._transport.put(path, data))

    async def _in_place(self, script: str, path: str) -> None:
        data_of(await self._commands.ask(script), path)

    def _full(self, path: str) -> str:
        path_of(path)
        return posixpath.join(self._workdir, path)


def _part() -> str:
    return f"/tmp/.dressage-part-{secrets.token_hex(8)}"
