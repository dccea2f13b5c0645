"""Containers as what an owner leaves: noted in the runtime folder, and removed over their engine's socket.

For the reaper, so without an HTTP client: one request a connection, of which only the status is read.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from .owner import Owner, file_name, owner_of_file

__all__ = ["API", "ContainerNotes", "remove_container"]

API = "/v1.41"
"""Of Docker 20.10, which Podman speaks too."""
_SUFFIX = "container"
_PATIENCE_S = 30.0


def remove_container(engine: Path, name: str, patience_s: float = _PATIENCE_S) -> bool:
    """Kill and remove a container; whether it has gone (one that is not there has). Blocks."""
    request = f"DELETE {API}/containers/{name}?force=true&v=true HTTP/1.0\r\nHost: engine\r\n\r\n"
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(patience_s)
            connection.connect(str(engine))
            connection.sendall(request.encode())
            answer = b""
            while b"\r\n" not in answer and (piece := connection.recv(1 << 12)):
                answer += piece
            words = answer.split(b" ", 2)
    except OSError:
        return False
    return len(words) > 1 and words[1] in (b"200", b"204", b"404")


@dataclass(frozen=True, slots=True)
class ContainerNotes:
    """Which containers are whose, in a folder that a reaper watches."""

    folder: Path

    def put(self, owner: Owner, name: str, engine: Path) -> None:
        """Note a container, before it is made."""
        part = self.folder / file_name(owner, name, "part")
        part.write_text(json.dumps({"name": name, "engine": str(engine)}))
        part.replace(self.folder / file_name(owner, name, _SUFFIX))

    def drop(self, owner: Owner, name: str) -> None:
        """It has gone; absent is fine."""
        (self.folder / file_name(owner, name, _SUFFIX)).unlink(missing_ok=True)

    def reap(self) -> list[str]:
        """Remove the containers of dead owners; returns their names."""
        gone = []
        for path in self.folder.glob(f"*.*-*-*.{_SUFFIX}"):
            owner = owner_of_file(path.name)
            if owner is None or owner.alive():
                continue
            try:
                told = json.loads(path.read_text())
                name, engine = str(told["name"]), Path(os.fspath(told["engine"]))
            except FileNotFoundError:
                continue
            except (ValueError, TypeError, KeyError):  # of nobody that could be found
                path.unlink(missing_ok=True)
                continue
            if remove_container(engine, name):
                path.unlink(missing_ok=True)
                gone.append(name)
        return gone
