"""The provider protocol: what a sandbox is asked for, what it does, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

MIB = 1 << 20
GIB = 1 << 30

OnOutput = Callable[[Literal["stdout", "stderr"], bytes], None]
"""Called in the event loop with each piece of output as it comes: every byte, and never after the end."""


class Feature(StrEnum):
    """What a provider may or may not be able to do. Asked for another, it raises ``Unsupported``."""

    STREAMS = "streams"
    """``run`` and ``start`` with ``on_output``."""
    SERVICES = "services"
    EXPOSE = "expose"
    SNAPSHOTS = "snapshots"
    RELAY = "relay"
    EGRESS = "egress"
    MOUNTS = "mounts"
    ROOT = "root"
    QUIET = "quiet"
    """``Sandbox.quiet``."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A read-only view of a host path inside the sandbox. Nothing else of the host's files is there."""

    source: Path
    target: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Ceilings of one sandbox. Bytes and seconds."""

    memory_bytes: int = GIB
    pids: int = 64
    open_files: int = 256
    disk_bytes: int = 256 * MIB
    """Size of each private writable file system (the workspace, /tmp, /dev/shm). Where they are in memory,
    they take three quarters of ``memory_bytes`` together at most, the workspace first, so that full ones
    leave room for programs."""
    output_bytes: int = 64 * 1024
    """Per stream of one command: head and tail are kept, the rest is drained and counted."""
    timeout_s: float = 30.0
    """Default time of one command."""
    cpus: float | None = None


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What to create. Nothing can be reached from inside but ``relay`` and what ``egress`` lists.

    A field that a provider cannot honour is refused (``Unsupported``), never ignored.
    """

    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/workspace"
    limits: Limits = field(default_factory=Limits)
    relay: str | None = None
    """The host address ("host:port") of the model relay, at ``Sandbox.relay_url`` inside, or None."""
    egress: tuple[str, ...] = ()
    """Further "host:port" that may be reached, through an HTTP proxy that the environment names inside."""
    root: Path | None = None
    """A folder that is / inside (an unpacked image, say), as the lower layer of a private one; None: /usr."""
    snapshot: str | None = None
    """Id of a ``Snapshot`` of this provider with which the work folder begins."""
    owner: str = ""
    """Whose it is, for people and for sweepers; it survives a crash of the caller where the provider can."""
    ttl_s: float = 3600.0
    """Seconds until it ends by itself; ``Sandbox.renew`` moves that on."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """How one command ended. ``exit_code`` is the program's own (128+n for signal n, as a shell says it)."""

    exit_code: int
    stdout: bytes
    """At most ``output_bytes``: head, a deterministic mark, tail."""
    stderr: bytes
    stdout_bytes: int
    """True number of bytes that the command wrote."""
    stderr_bytes: int
    timed_out: bool
    duration_s: float

    @property
    def truncated(self) -> bool:
        """Whether some output was left out."""
        return self.stdout_bytes > len(self.stdout) or self.stderr_bytes > len(self.stderr)


@dataclass(frozen=True, slots=True)
class DirEntry:
    """One entry of a directory: ``kind`` is file, dir, symlink or other; ``size`` in bytes."""

    name: str
    kind: str
    size: int


@dataclass(frozen=True, slots=True)
class Status:
    """How a sandbox does. It never waits for the inside; None is "this provider cannot tell"."""

    alive: bool
    why: str
    """Why it ended, in words; empty while it lives."""
    owner: str
    age_s: float
    expires_in_s: float
    """Seconds left to live: 0 when over, ``inf`` for no end."""
    memory_bytes: int | None = None
    processes: int | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a port of the inside is reached from the caller's side. Lives as long as the sandbox."""

    url: str
    """``http://host:port``, without a path."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """What each request must carry; for providers that guard the way in."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A work folder as it was. ``SandboxSpec.snapshot`` takes the id; it ends with its provider."""

    id: str
    size_bytes: int


@runtime_checkable
class Service(Protocol):
    """A program that runs beside the commands, without a time-out, until it ends, or its sandbox does."""

    @property
    def id(self) -> str:
        """Unique in its sandbox."""

    @property
    def running(self) -> bool:
        """Whether it has not ended, as far as is known without asking."""

    async def wait(self, timeout_s: float | None = None) -> RunResult:
        """How it ended; ``TimeoutError`` where it still runs after ``timeout_s``. May be called again."""

    async def stop(self, *, grace_s: float = 2.0) -> RunResult:
        """SIGTERM, after ``grace_s`` SIGKILL, for its whole tree. Idempotent; never ``timed_out``."""


@runtime_checkable
class Sandbox(Protocol):
    """A live sandbox. All file access happens inside its namespace."""

    @property
    def id(self) -> str:
        """Unique on this host."""

    @property
    def relay_url(self) -> str | None:
        """``http://127.0.0.1:<port>`` as seen INSIDE, where the spec named a relay."""

    async def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        output_bytes: int | None = None,
        on_output: OnOutput | None = None,
    ) -> RunResult:
        """Run argv (a sequence) or a shell line (a str). A timeout ends the whole tree of the command."""

    async def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        output_bytes: int | None = None,
        on_output: OnOutput | None = None,
    ) -> Service:
        """Start a service; one that cannot be started at all has ended already, with 126 or 127."""

    async def read(self, path: str, *, offset: int = 0, max_bytes: int = MIB) -> bytes:
        """At most ``max_bytes`` of a regular file; never blocks on FIFOs or devices."""

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a whole file, making parent folders."""

    async def list(self, path: str) -> list[DirEntry]:
        """Entries of a directory, sorted by name."""

    async def upload(self, source: Path, path: str, *, mode: int = 0o644) -> int:
        """Copy a regular file of the caller's machine inside, streamed; returns its bytes."""

    async def download(self, path: str, target: Path, *, max_bytes: int = GIB) -> int:
        """Copy a regular file of the inside out, streamed; returns its bytes.

        ``target`` appears whole or not at all. More than ``max_bytes`` is refused (``FileTooLarge``).
        """

    async def expose(self, port: int) -> Endpoint:
        """Make a TCP port of the inside's loopback reachable for the caller. Idempotent per port."""

    async def snapshot(self) -> Snapshot:
        """The work folder as it is now, for ``SandboxSpec.snapshot``."""

    async def quiet(self) -> None:
        """End every process inside: commands, services, and all that they left running. Files stay.

        What runs afterwards has nothing beside it that was there before.
        """

    async def status(self) -> Status:
        """How it does; also answers after the end."""

    async def renew(self, ttl_s: float) -> None:
        """The heartbeat: it lives ``ttl_s`` seconds from now (``SandboxGone`` where it has ended)."""

    async def terminate(self) -> None:
        """End everything inside and remove every trace. Idempotent and bounded in time."""


@runtime_checkable
class SandboxProvider(Protocol):
    """Where sandboxes come from."""

    @property
    def features(self) -> frozenset[Feature]:
        """What it can do, known without asking anyone."""

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """A ready sandbox; on any failure or cancellation nothing is left behind."""

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Forget a snapshot; absent is fine. Sandboxes made from it live on."""

    async def close(self) -> None:
        """Terminate every sandbox that this provider made, and forget its snapshots."""
