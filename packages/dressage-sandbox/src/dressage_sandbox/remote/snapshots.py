"""Work folders as they were, kept on this machine as archives."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from pathlib import Path
from shlex import quote

from ..errors import InvalidSpec, SandboxGone
from ..protocol import Snapshot
from .commands import Commands
from .files import Files
from .reports import data_of

__all__ = ["Snapshots"]

_ROOM = 16 << 20
"""What an archive may be longer than the files in it."""
_TAR_S = 600.0


class Snapshots:
    """The snapshots of a provider; they go with ``close``."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._known: dict[str, Path] = {}

    def check(self, snapshot_id: str | None) -> None:
        """Raise ``InvalidSpec`` where there is none of this id."""
        if snapshot_id is not None and snapshot_id not in self._known:
            raise InvalidSpec(
                f"snapshot {snapshot_id!r} is not there: it was deleted, or is of another provider"
            )

    async def take(self, commands: Commands, files: Files, workdir: str, disk_bytes: int) -> Snapshot:
        """Archive the work folder and bring the archive here.

        Raises:
            FileTooLarge: it is longer than the sandbox's disk.
        """
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="dressage-snapshots-")
        name = f"snap-{secrets.token_hex(8)}"
        inside, here = f"/tmp/.dressage-{name}", Path(self._folder.name, name)
        # 1: a file changed while it was read, as files of a live folder do.
        packed = f"tar -C {quote(workdir)} -cf {inside} . 2>/dev/null; [ $? -le 1 ] && echo D || echo 'E 28'"
        try:
            data_of(await commands.ask(packed, timeout_s=_TAR_S), workdir)
            size = await files.download(inside, here, disk_bytes + _ROOM)
        finally:
            await commands.ask(f"rm -f {inside}")
        self._known[name] = here
        return Snapshot(name, size)

    async def restore(self, commands: Commands, files: Files, workdir: str, snapshot_id: str) -> None:
        """Fill an empty work folder."""
        self.check(snapshot_id)
        inside = f"/tmp/.dressage-{snapshot_id}-{secrets.token_hex(4)}"
        await files.upload(self._known[snapshot_id], inside, 0o600)
        answer = await commands.ask(
            f"tar -C {quote(workdir)} -xpf {inside} && echo D; rm -f {inside}", timeout_s=_TAR_S
        )
        if answer.strip() != b"D":
            raise SandboxGone(f"snapshot {snapshot_id} could not be unpacked")

    def delete(self, snapshot_id: str) -> None:
        """Forget one; absent is fine."""
        path = self._known.pop(snapshot_id, None)
        if path is not None:
            path.unlink(missing_ok=True)

    async def close(self) -> None:
        """Forget all."""
        self._known.clear()
        if self._folder is not None:
            await asyncio.to_thread(self._folder.cleanup)
            self._folder = None
