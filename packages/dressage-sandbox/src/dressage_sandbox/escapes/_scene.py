"""What an attempt is made against: a host with something to lose, a sandbox to start in, and a neighbour."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from ..protocol import Limits, SandboxSpec
from ..provider import BubblewrapProvider
from ..sandbox import BubblewrapSandbox

__all__ = ["Scene", "scene"]

_VICTIM = "import sys, time; print('up', flush=True); time.sleep(600)"


@dataclass
class Host:
    """Things of the host: a process with a secret, a file with one, servers that nobody inside may reach."""

    secret: str
    folder: Path
    victim: subprocess.Popen[bytes]
    server: socket.socket
    wide: socket.socket
    abstract: socket.socket
    egress: socket.socket
    addresses: list[str]

    def harm(self) -> str:
        """What has happened to it."""
        if self.victim.poll() is not None:
            return "the host's process was killed"
        state = Path(f"/proc/{self.victim.pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state in "Tt":
            return "the host's process was stopped"
        if self.secret not in (self.folder / "secret").read_text():
            return "the host's file was changed"
        for name, server in (("loopback", self.server), ("0.0.0.0", self.wide), ("abstract", self.abstract)):
            with contextlib.suppress(BlockingIOError):
                server.accept()[0].close()
                return f"the host's server on {name} was reached"
        return ""


@dataclass
class Scene:
    """A sandbox to break out of, and its surroundings."""

    host: Host
    provider: BubblewrapProvider
    box: BubblewrapSandbox
    neighbour: BubblewrapSandbox
    targets: dict[str, object] = field(default_factory=dict)


def _start_victim(secret: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _VICTIM, f"--key={secret}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env={"KEY": secret})


@contextlib.asynccontextmanager
async def _host() -> AsyncIterator[Host]:
    secret = f"planted-{secrets.token_hex(8)}"
    with tempfile.TemporaryDirectory(prefix="dressage-escapes-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "secret").write_text(secret)
        victim = await asyncio.to_thread(_start_victim, secret)
        assert victim.stdout is not None
        stack.callback(victim.stdout.close)
        stack.callback(victim.wait)
        stack.callback(victim.kill)
        await asyncio.to_thread(victim.stdout.readline)
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        wide = stack.enter_context(socket.create_server(("0.0.0.0", 0)))
        egress = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0dressage-{secret}")
        abstract.listen()
        for each in (server, wide, abstract):
            each.setblocking(False)
        yield Host(secret, folder, victim, server, wide, abstract, egress, _own_addresses())


def _own_addresses() -> list[str]:
    """Addresses of this host's network cards, as a datagram socket would choose them (nothing is sent)."""
    found = []
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))
            found.append(str(probe.getsockname()[0]))
    return found


@contextlib.asynccontextmanager
async def scene(limits: Limits | None = None) -> AsyncIterator[Scene]:
    """A host, a sandbox, a neighbour; everything is ended afterwards."""
    async with _host() as host:
        provider = BubblewrapProvider(runtime_dir=host.folder / "runtime")
        listed = f"127.0.0.1:{host.egress.getsockname()[1]}"
        share = (os.cpu_count() or 1) / 2 if (await provider.probe()).cpu != "none" else None
        # Files count as memory, so three full file systems must leave some for the commands that come after.
        limits = limits or Limits(pids=48, cpus=share, disk_bytes=96 << 20)
        spec = SandboxSpec(limits=limits, egress=(listed,), env={"OWN": "1"})
        try:
            box, neighbour = [await provider.create(spec) for _ in "ab"]
            await neighbour.write("/workspace/secret", host.secret.encode())
            serve = "import socket, time; s = socket.create_server(('127.0.0.1', 7777)); time.sleep(600)"
            await neighbour.start(["python3", "-c", serve])
            exposed = (await neighbour.expose(7777)).url
            targets: dict[str, object] = {
                "secret": host.secret, "pid": host.victim.pid, "own_pid": os.getpid(),
                "file": str(host.folder / "secret"), "runtime": str(host.folder / "runtime"),
                "paths": [p for p in (sys.prefix, str(Path(__file__).parents[1]), *sys.path) if p],
                "ports": [s.getsockname()[1] for s in (host.server, host.wide)],
                "exposed": int(exposed.rpartition(":")[2]), "addresses": host.addresses,
                "neighbour": neighbour.pid, "abstract": f"\0dressage-{host.secret}",
            }  # fmt: skip
            yield Scene(host, provider, box, neighbour, targets)
        finally:
            await provider.close()
