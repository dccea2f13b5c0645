"""A folder as the / of a sandbox: an unpacked image, or any other root.

Its top entries appear read-only; /proc, /dev, /sys, /run and /tmp are the sandbox's own. The work folder is
private and writable. If the image has that folder too, it begins with the image's content:

- as an overlay, at once, where its owner is the provider's user, or can be mapped to the sandbox's
  (``idmap``; a sandbox has one user alone, and an overlay cannot change what belongs to another);
- as a private copy otherwise.

The agent's interpreter comes along with its own loader and libraries, so that an image needs neither Python
nor a libc that fits.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from .errors import InvalidSpec, ProviderUnavailable
from .inside.tree import write_archive
from .interpreter import Interpreter

__all__ = ["Image", "look_at", "pack_folder", "portable"]

_OWN = frozenset(("proc", "dev", "sys", "run", "tmp"))
PORTABLE_HOME = "/run/dressage/python"
_EXTENSIONS = ("resource", "_ctypes", "_struct", "_socket", "select", "_posixsubprocess")


@dataclass(frozen=True, slots=True)
class Image:
    """What a sandbox takes of a root: directories and links at its top, and how its work folder begins."""

    folders: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    workdir: Path | None
    """The image's folder of the work folder's name; None where it has none."""
    overlay: bool
    """Whether the work folder can be an overlay over it."""


def look_at(root: Path, workdir: str, can_overlay: Callable[[Path], bool]) -> Image:
    """Read a root's top level.

    Raises:
        InvalidSpec: it is no root that programs could start from, or the work folder cannot lie there.
    """
    if not root.is_dir():
        raise InvalidSpec(f"root={str(root)!r}: no such folder on this host")
    folders, links = [], []
    for entry in sorted(os.scandir(root), key=lambda e: e.name):
        if entry.name in _OWN:
            continue
        if entry.is_symlink():
            links.append((entry.name, str(Path(entry.path).readlink())))
        elif entry.is_dir():
            folders.append(entry.name)
    if not {"bin", "usr"} & {*folders, *(name for name, _ in links)}:
        raise InvalidSpec(f"root={str(root)!r}: it has neither bin nor usr; give an unpacked image's folder")
    own = _lower(root, workdir)
    overlay = own is not None and can_overlay(own)
    return Image(tuple(folders), tuple(links), own, overlay)


def _lower(root: Path, workdir: str) -> Path | None:
    """The image's own work folder. A link on the way could lead to the host's files, and is refused."""
    at = root
    parts = PurePosixPath(workdir).parts[1:]
    for number, part in enumerate(parts):
        at /= part
        if at.is_symlink() or (at.exists() and not at.is_dir()):
            raise InvalidSpec(f"workdir: {workdir!r} passes a link or file in the image; name a real folder")
        if not at.exists():
            if number:
                raise InvalidSpec(f"workdir: {workdir!r} is not in the image, and only / can get new folders")
            return None
    return at


def pack_folder(folder: Path, target: Path, max_bytes: int) -> None:
    """An archive of ``folder`` for ``unpack``. Blocks: for a thread.

    Raises:
        InvalidSpec: it is larger than ``max_bytes``.
    """
    size = sum((Path(place) / name).lstat().st_size for place, _, names in os.walk(folder) for name in names)
    if size > max_bytes:
        raise InvalidSpec(f"limits.disk_bytes={max_bytes}: the image's {folder.name} has {size} bytes")
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_archive(fd, os.fsencode(folder))
    except BaseException:
        target.unlink()
        raise
    finally:
        os.close(fd)


def portable(interpreter: Interpreter) -> Interpreter:
    """The same Python with all that it needs of the host, to run beside another system's files.

    Raises:
        ProviderUnavailable: its parts cannot be found.
    """
    home = PurePosixPath(PORTABLE_HOME)
    if interpreter.mounts:
        program = interpreter.mounts[0][0]
        library = interpreter.mounts[1][0]
    else:
        program = Path(interpreter.path)
        library = program.parent.parent / "lib" / _library_name(program)
    extensions = [p for name in _EXTENSIONS for p in (library / "lib-dynload").glob(f"{name}.*so")]
    libraries, loader = _needed([program, *extensions])
    for source, target in interpreter.mounts[2:]:  # libpython, where the interpreter is built so
        libraries[PurePosixPath(target).name] = source
    name = library.name
    mounts = [(program, f"{home}/bin/{name}"), (library, f"{home}/lib/{name}"), (loader, f"{home}/ld.so")]
    mounts += [(path.resolve(), f"{home}/shared/{soname}") for soname, path in libraries.items()]
    hidden = [d for d in ("site-packages", "dist-packages", "test") if (library / d).is_dir()]
    return replace(
        interpreter,
        path=f"{home}/bin/{name}",
        mounts=tuple(mounts),
        hidden=tuple(f"{home}/lib/{name}/{d}" for d in hidden),
        loader=(f"{home}/ld.so", "--library-path", f"{home}/shared"),
    )


def _library_name(program: Path) -> str:
    if re.fullmatch(r"python3\.\d+", program.name):
        return program.name
    done = subprocess.run([program, "-ISc", "import sys; print('python%d.%d' % sys.version_info[:2])"],
                          capture_output=True, text=True, env={}, timeout=10, check=True)  # fmt: skip
    return done.stdout.strip()


def _needed(files: list[Path]) -> tuple[dict[str, Path], Path]:
    """Shared libraries of these files by the name they are asked for, and the loader."""
    libraries: dict[str, Path] = {}
    loader: Path | None = None
    for file in files:
        try:
            done = subprocess.run(
                ["ldd", file], capture_output=True, text=True, timeout=10, check=False,
                env={"PATH": "/usr/bin:/bin"},
            )  # fmt: skip
        except OSError as error:
            raise ProviderUnavailable(
                f"root: ldd is needed once to find Python's libraries: {error}"
            ) from error
        for name, path in re.findall(r"(\S+) => (/\S+)", done.stdout):
            libraries[name] = Path(path)
        found = re.search(r"^\s+(/\S*ld[-.]\S+)", done.stdout, re.M)
        loader = Path(found.group(1)).resolve() if found else loader
    if loader is None:
        raise ProviderUnavailable("root: the loader of the host's Python was not found by ldd")
    return libraries, loader
