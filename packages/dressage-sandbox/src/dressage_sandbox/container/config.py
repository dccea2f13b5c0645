"""Which engine, which image, and how a container is held."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from ..errors import InvalidSpec

__all__ = ["ContainerConfig", "find_socket"]


@dataclass(frozen=True, slots=True)
class ContainerConfig:
    """Settings of a provider."""

    image: str = "debian:stable-slim"
    """It must be there already, and needs a POSIX shell and the usual small programs."""
    socket: Path | None = None
    """The engine's; None: the first of those of Docker and Podman that is there (``find_socket``)."""
    uid: int = 1000
    """Whom commands run as, inside; never root."""
    network: str | None = None
    """A network of the engine that reaches the model relay and nothing else (an internal one). None: no
    container has a network, and a spec's ``relay`` is refused."""
    runtime: str | None = None
    """The engine's low-level runtime, such as runsc; None: its default."""
    request_timeout_s: float = 60.0
    runtime_dir: Path | None = None
    """Private folder for notes of live containers; None: that of all providers on this machine."""
    reaper: bool = True
    """False starts no reaper: containers of this process, should it be killed, stay until the next one."""

    def __post_init__(self) -> None:
        if not self.image:
            raise InvalidSpec("config.image is empty: name an image that the engine has")
        if self.uid < 1:
            raise InvalidSpec(f"config.uid is {self.uid}: commands never run as root; give 1 or more")
        if not self.request_timeout_s > 0:
            raise InvalidSpec("config.request_timeout_s must be more than 0")


def find_socket(run: Path = Path("/run")) -> Path | None:
    """The socket of an engine on this machine: Docker's, then Podman's, then this user's own ones."""
    own = run / "user" / str(os.getuid())
    places = (place / name for place in (run, own) for name in ("docker.sock", "podman/podman.sock"))
    return next((place for place in places if _is_socket(place)), None)


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode) and os.access(path, os.R_OK | os.W_OK)
    except OSError:
        return False
