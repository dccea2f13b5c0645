"""Reading back what a task wants to keep of its sandbox, and keeping it on disk."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from dressage_sandbox.errors import NotARegularFile, SandboxFileError, file_error
from dressage_sandbox.protocol import Sandbox

from dressage_paddock.errors import TaskError

MAX_DEPTH = 16
"""Folders within folders that are followed."""
MAX_PATH_BYTES = 2048
"""Longer paths are left out: below another folder a file system would not take them."""
MAX_ENTRIES = 2000
"""Entries of folders that are looked at in all."""


@dataclass(frozen=True, slots=True)
class Artifacts:
    """Files as they were after the agent ended, by the path that the task names.

    A file of a folder that the task names has the folder's path before its own. ``missing`` names what is
    not there or is no regular file; ``cut`` names files that are longer than their cap or have no place in a
    grader's sandbox, and folders of which something was left out.
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()

    @property
    def whole(self) -> dict[str, bytes]:
        """The files that are there to their last byte."""
        return {path: data for path, data in self.files.items() if path not in self.cut}


@dataclass(frozen=True, slots=True)
class Room:
    """How much is read back. ``file_bytes`` per file, ``total_bytes`` and ``files`` in all, and so many
    ``seconds`` for going about folders: an agent can leave more of them than there is time for."""

    file_bytes: int
    total_bytes: int
    files: int
    seconds: float = 30.0


class _Reader:
    def __init__(self, sandbox: Sandbox, room: Room, workdir: str) -> None:
        self._sandbox = sandbox
        self._room = room
        self._workdir = PurePosixPath(workdir)
        self.files: dict[str, bytes] = {}
        self.cut: list[str] = []
        self._left = MAX_ENTRIES
        self._until = time.monotonic() + room.seconds

    async def take(self, path: str) -> bool:
        """Read a file, or a folder's files; whether there was one."""
        try:
            await self._file(path)
        except NotARegularFile:
            return await self._folder(path, path, 0)
        except SandboxFileError:
            return False
        return True

    async def _file(self, path: str) -> None:
        left = self._room.total_bytes - sum(map(len, self.files.values()))
        cap = max(0, min(self._room.file_bytes, left))
        data = await self._sandbox.read(str(self._workdir / path), max_bytes=cap + 1)
        if self._is_folder_too(path):
            raise file_error(errno.ENOTDIR, path)
        if len(data) > cap:
            self.cut.append(path)
        self.files[path] = data[:cap]

    def _is_folder_too(self, path: str) -> bool:
        """Whether a file below this one was read, or one that this is below: what a command turned from one
        into the other meanwhile. No other folder could hold both."""
        above = {str(folder) for folder in PurePosixPath(path).parents}
        return any(name in above or name.startswith(f"{path.rstrip('/')}/") for name in self.files)

    async def _folder(self, path: str, root: str, depth: int) -> bool:
        try:
            entries = await self._sandbox.list(str(self._workdir / path))
        except SandboxFileError:
            return False
        for entry in entries:
            below = f"{path.rstrip('/')}/{entry.name}"
            self._left -= 1
            if len(os.fsencode(below)) > MAX_PATH_BYTES:
                self._cut(root)
                continue
            if self._left < 0 or time.monotonic() > self._until:
                self._cut(root)
                break
            if entry.kind == "dir" and depth < MAX_DEPTH:
                if not await self._folder(below, root, depth + 1):
                    self._cut(root)
            elif entry.kind == "file" and len(self.files) < self._room.files:
                await self._one_of(below, root)
            else:
                self._cut(root)
        return True

    async def _one_of(self, path: str, root: str) -> None:
        try:
            await self._file(path)
        except SandboxFileError:  # it went away, or became something else, since it was listed
            self._cut(root)

    def _cut(self, root: str) -> None:
        if root not in self.cut:
            self.cut.append(root)


async def collect(sandbox: Sandbox, paths: Sequence[str], room: Room, workdir: str) -> Artifacts:
    """Read ``paths``: files, or folders with all that is below them. Links and devices are left out.

    Raises :class:`~dressage_sandbox.SandboxError` where the sandbox is gone.
    """
    reader = _Reader(sandbox, room, workdir)
    missing = [path for path in paths if not await reader.take(path)]
    return Artifacts(reader.files, tuple(missing), tuple(reader.cut))


def save_artifacts(files: Mapping[str, bytes], folder: Path, rollout_id: str) -> Path:
    """Write a rollout's artifacts to ``folder/rollout_id``, whole or not at all; returns that folder.

    Relative paths go below ``work``, absolute ones below ``root``. Raises :class:`TaskError` where the id is
    no file name or a path leads out, and :class:`FileExistsError` where the folder is there already.
    """
    if not rollout_id or rollout_id in (".", "..") or "/" in rollout_id or "\0" in rollout_id:
        raise TaskError(f"rollout_id {rollout_id!r} is no file name: give one without '/'")
    target = folder / rollout_id
    if target.exists():
        raise FileExistsError(f"{target} is there already")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{rollout_id[:64]}-", dir=folder) as part:
        whole = Path(part) / "whole"
        whole.mkdir()
        for name, data in files.items():
            path = PurePosixPath(name)
            if ".." in path.parts:
                raise TaskError(f"artifact {name!r} leads out of the folder")
            place = whole / "root" / path.relative_to("/") if path.is_absolute() else whole / "work" / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        whole.rename(target)
    return target
