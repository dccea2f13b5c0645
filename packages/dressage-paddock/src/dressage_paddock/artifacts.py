"""Reading back what a task wants to keep of its sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from dressage_sandbox.errors import SandboxFileError
from dressage_sandbox.protocol import Sandbox


@dataclass(frozen=True, slots=True)
class Artifacts:
    """Files as they were after the agent ended, by the path that the task names."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()


async def collect(sandbox: Sandbox, paths: Sequence[str], max_bytes: int, workdir: str) -> Artifacts:
    """Read ``paths``, each up to ``max_bytes``. What is not a regular file is named as missing."""
    files: dict[str, bytes] = {}
    missing: list[str] = []
    cut: list[str] = []
    for path in paths:
        try:
            data = await sandbox.read(str(PurePosixPath(workdir) / path), max_bytes=max_bytes + 1)
        except SandboxFileError:
            missing.append(path)
            continue
        if len(data) > max_bytes:
            cut.append(path)
        files[path] = data[:max_bytes]
    return Artifacts(files, tuple(missing), tuple(cut))
