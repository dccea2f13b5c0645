"""What is kept of sandboxes that failed: which folders, of how many sandboxes, for how long."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .errors import InvalidSpec, SandboxError
from .protocol import GIB, Status

__all__ = ["ArtifactArchive", "Kept"]

_ABOUT = "about.json"


class _Packable(Protocol):
    @property
    def id(self) -> str: ...

    async def status(self) -> Status: ...

    async def pack(self, path: str, target: Path, *, max_bytes: int = GIB) -> int: ...


@dataclass(frozen=True, slots=True)
class Kept:
    """One kept sandbox: its folder, and what could not be kept and why, by path."""

    folder: Path
    missing: dict[str, str]


class ArtifactArchive:
    """Keeps folders of failed sandboxes as tar files, one directory a sandbox, with an ``about.json``.

    Args:
        folder: where; made if it is not there. Only this archive's own directories in it are ever removed.
        paths: folders of the inside.
        keep: of how many sandboxes; the oldest go first.
        keep_s: for how long, in seconds.
        max_bytes: the longest archive of one folder; a longer one is left out, and ``missing`` says so.
    """

    def __init__(
        self,
        folder: Path,
        *,
        paths: Sequence[str] = ("/workspace",),
        keep: int = 100,
        keep_s: float = 7 * 86400.0,
        max_bytes: int = GIB,
    ) -> None:
        if keep < 1 or not keep_s > 0 or max_bytes < 1 or isinstance(paths, str):
            raise InvalidSpec("keep, keep_s and max_bytes must be more than 0, and paths a list")
        self.folder, self.paths = folder, tuple(paths)
        self.keep, self.keep_s, self.max_bytes = keep, keep_s, max_bytes

    @contextlib.asynccontextmanager
    async def on_failure(self, sandbox: _Packable) -> AsyncIterator[None]:
        """Keeps the sandbox if the block raises; the error goes on."""
        try:
            yield
        except Exception as error:
            try:
                await self.save(sandbox, f"{type(error).__name__}: {error}")
            except (SandboxError, OSError) as failure:
                error.add_note(f"its sandbox could not be kept: {failure}")
            raise

    async def save(self, sandbox: _Packable, why: str) -> Kept:
        """Keep a live sandbox's folders, and prune. What cannot be read is told in ``missing``."""
        now = time.time()
        name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(now))}-{sandbox.id}"
        target = await asyncio.to_thread(_new_folder, self.folder, name)
        missing: dict[str, str] = {}
        files = _names(self.paths)
        for path, name in files.items():
            file = target / name
            try:
                await sandbox.pack(path, file, max_bytes=self.max_bytes)
            except (SandboxError, OSError) as error:
                missing[path] = str(error)
        status = await sandbox.status()
        about = {"id": sandbox.id, "owner": status.owner, "why": why, "at": now, "age_s": status.age_s}
        kept = {path: name for path, name in files.items() if path not in missing}
        text = json.dumps({**about, "files": kept, "missing": missing}, indent=2) + "\n"
        await asyncio.to_thread((target / _ABOUT).write_text, text)
        await asyncio.to_thread(self.prune)
        return Kept(target, missing)

    def prune(self) -> list[Path]:
        """Remove what is too old or too much; returns the directories that went."""
        if not self.folder.is_dir():
            return []
        own = sorted(p for p in self.folder.iterdir() if re.fullmatch(r"\d{8}T\d{6}-\S+", p.name))
        now = time.time()
        old = {p for p in own if now - _modified(p) > self.keep_s}
        gone = [p for p in own if p in old or p in own[: max(0, len(own) - self.keep)]]
        for path in gone:
            with contextlib.suppress(FileNotFoundError):  # another process prunes the same folder
                shutil.rmtree(path)
        return gone


def _new_folder(parent: Path, name: str) -> Path:
    """A folder of this name, or with a number after it where a sandbox is kept twice in a second."""
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    number = 1
    while True:
        folder = parent / (name if number == 1 else f"{name}.{number}")
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            number += 1
        else:
            return folder


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # pruned by another process
        return 0.0


def _names(paths: Sequence[str]) -> dict[str, str]:
    """A file's name for each path, no two the same: ``/a/b`` and ``/a_b`` look alike."""
    names: dict[str, str] = {}
    for path in dict.fromkeys(paths):
        plain = re.sub(r"[^A-Za-z0-9._-]", "_", path.strip("/")) or "root"
        name, number = f"{plain}.tar", 1
        while name in names.values():
            number += 1
            name = f"{plain}-{number}.tar"
        names[path] = name
    return names
