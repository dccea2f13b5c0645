"""The provider protocol: what a sandbox is asked for, what it does, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Mount:
    """A read-only view of a host path inside the sandbox. Nothing else of the host's files is there."""

    source: Path
    target: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Ceilings of one sandbox. Bytes and seconds."""

    memory_bytes: int = 512 * MIB
    pids: int = 64
    open_files: int = 256
    disk_bytes: int = 256 * MIB
    """Size of the private writable file systems (/tmp and the workspace)."""
    output_bytes: int = 64 * 1024
    """Per stream of one command: head and tail are kept, the rest is drained and counted."""
    timeout_s: float = 30.0
    """Default time of one command."""
    cpus: float | None = None


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What to create. ``relay`` is the ONE host address ("host:port") that the inside may reach, or None."""

    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/workspace"
    limits: Limits = field(default_factory=Limits)
    relay: str | None = None
    owner: str = ""
    ttl_s: float = 3600.0


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
    ) -> RunResult:
        """Run argv (a sequence) or a shell line (a str). A timeout ends the whole tree of the command."""

    async def read(self, path: str, *, offset: int = 0, max_bytes: int = MIB) -> bytes:
        """At most ``max_bytes`` of a regular file; never blocks on FIFOs or devices."""

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a whole file, making parent folders."""

    async def list(self, path: str) -> list[DirEntry]:
        """Entries of a directory, sorted by name."""

    async def terminate(self) -> None:
        """End everything inside and remove every trace. Idempotent and bounded in time."""


@runtime_checkable
class SandboxProvider(Protocol):
    """Where sandboxes come from."""

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """A ready sandbox; on any failure or cancellation nothing is left behind."""

    async def close(self) -> None:
        """Terminate every sandbox that this provider made."""
