"""Mount sources that the sandbox's own host uid could not walk to.

A provider that runs as root gives each sandbox an unprivileged host uid. bubblewrap resolves mount sources
as that uid, so a source in root's home (or under any folder that is closed to others) is out of reach. Then
an outer bubblewrap, still root, first binds all sources under one folder of a mount namespace that only the
inner one sees.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .errors import InvalidSpec
from .idmap import helper

__all__ = ["Overlay", "Shelf", "make_shelf"]

_PLACE = "/sys"
"""What is hidden meanwhile: a folder that every machine has, and that no program, image or home lies in."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where bubblewrap finds each source, and the arguments of the outer one ([] where none is needed)."""

    places: dict[Path, str]
    outer: tuple[str, ...]
    lower: str = ""
    upper: tuple[str, str] = ("", "")
    """Lower, and upper and work folder of an overlay, the latter in a file system of bounded size."""


@dataclass(frozen=True, slots=True)
class Overlay:
    """An overlay that is wanted: over ``root`` + ``workdir``, which is ``owner``'s, of ``size`` bytes."""

    root: Path
    workdir: str
    owner: int
    size: int


def make_shelf(sources: Iterable[Path], *, drops_root: bool, overlay: Overlay | None = None) -> Shelf:
    """Plan for these sources, and for an overlay's layers.

    bubblewrap's own --tmp-overlay has no limit of size; so an outer one makes a tmpfs that has.

    Raises:
        InvalidSpec: a source that only root could read.
    """
    resolved = {source: source.resolve() for source in sources}
    if not drops_root:
        places = {source: str(real) for source, real in resolved.items()}
        return Shelf(places, ()) if overlay is None else _with_upper(places, overlay)
    for source, real in resolved.items():
        if not _open_to_others(real):
            raise InvalidSpec(f"mounts: {source} can be read by its owner alone; chmod o+rX it")
    if overlay is None and not any(_behind_closed_folder(real) for real in resolved.values()):
        return Shelf({source: str(real) for source, real in resolved.items()}, ())
    outer = ["--dev-bind", "/", "/", "--tmpfs", _PLACE]
    places = {}
    for number, (source, real) in enumerate(resolved.items()):
        places[source] = f"{_PLACE}/{number}"
        outer += ["--ro-bind", str(real), places[source]]
    # What it needs to take the unprivileged uid afterwards, and nothing more of root's.
    outer += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    if overlay is None:
        return Shelf(places, (*outer, "--"))
    lower, over = f"{_PLACE}/lower", f"{_PLACE}/over"
    upper = (f"{over}/upper", f"{over}/work")
    outer += ["--dir", lower, *_layers(over, overlay.size), "--cap-add", "CAP_SYS_ADMIN"]
    outer += ["--cap-add", "CAP_CHOWN", "--"]
    mapped = helper(places[overlay.root] + overlay.workdir, lower, overlay.owner, upper)
    return Shelf(places, (*outer, *mapped), lower, upper)


def _with_upper(places: dict[Path, str], overlay: Overlay) -> Shelf:
    outer = ["--unshare-user", "--dev-bind", "/", "/", *_layers(_PLACE, overlay.size), "--"]
    lower = places[overlay.root] + overlay.workdir
    return Shelf(places, tuple(outer), lower, (f"{_PLACE}/upper", f"{_PLACE}/work"))


def _layers(place: str, size: int) -> list[str]:
    return ["--size", str(size), "--tmpfs", place, "--dir", f"{place}/upper", "--dir", f"{place}/work"]


def _open_to_others(path: Path) -> bool:
    mode = path.stat().st_mode
    needed = 0o005 if stat.S_ISDIR(mode) else 0o004
    return mode & needed == needed


def _behind_closed_folder(path: Path) -> bool:
    return any(not folder.stat().st_mode & 0o001 for folder in path.parents)
