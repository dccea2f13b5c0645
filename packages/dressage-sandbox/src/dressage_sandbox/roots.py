"""The roots that a provider's specs name: looked at, and what they need made once."""

from __future__ import annotations

import os
import secrets
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from .errors import InvalidSpec
from .idmap import can_map
from .images import Image, look_at, pack_folder, portable
from .interpreter import Interpreter
from .launch import Launcher
from .owner import Owner
from .owners import snapshot_name
from .protocol import SandboxSpec

__all__ = ["Rooted", "Roots"]


@dataclass(frozen=True, slots=True)
class Rooted:
    """What a spec with a root takes: its files, the agent's Python, and the work folder's beginning."""

    image: Image
    interpreter: Interpreter
    archive: Path | None


class Roots:
    """A root is taken not to change: the archive of its work folder is made once, in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._archives: dict[Path, Path] = {}
        self._portable: Interpreter | None = None
        self._mappable: dict[int, bool] = {}
        """Whether a file system's folders can be mounted with other owners, by its device number."""
        self._lock = threading.Lock()

    def of(self, spec: SandboxSpec, interpreter: Interpreter, owner: Owner, launcher: Launcher) -> Rooted:
        """What ``spec.root`` needs. Blocks: for a thread.

        Raises:
            InvalidSpec, ProviderUnavailable: as ``images`` says.
        """
        if spec.root is None:
            raise InvalidSpec("root: not given")
        with self._lock:
            if self._portable is None:
                self._portable = portable(interpreter)
            image = look_at(spec.root, spec.workdir, lambda folder: self._can_overlay(folder, launcher))
            if spec.snapshot is not None:
                return Rooted(replace(image, overlay=False), self._portable, None)
            if image.workdir is None or image.overlay:
                return Rooted(image, self._portable, None)
            if image.workdir not in self._archives:
                archive = self._folder / snapshot_name(owner, f"snap-{secrets.token_hex(6)}")
                pack_folder(image.workdir, archive, spec.limits.disk_bytes)
                self._archives[image.workdir] = archive
            return Rooted(image, self._portable, self._archives[image.workdir])

    def _can_overlay(self, folder: Path, launcher: Launcher) -> bool:
        if not launcher.drops_root:
            return folder.stat().st_uid == os.geteuid()
        device = folder.stat().st_dev
        if device not in self._mappable:
            self._mappable[device] = can_map(launcher.bubblewrap, folder)
        return self._mappable[device]

    def forget(self) -> None:
        """Remove the archives."""
        while self._archives:
            self._archives.popitem()[1].unlink(missing_ok=True)
