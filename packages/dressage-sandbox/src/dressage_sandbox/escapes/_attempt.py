"""What an attempt is, and what becomes of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from ._scene import Scene, scene

__all__ = ["Attempt", "Row", "inside", "try_one"]

MARK = "ESCAPED"
"""A program inside that reaches what it must not prints this and what it reached."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """``act`` tries it and returns what it came to: "" where it was refused."""

    kind: str
    name: str
    act: Callable[[Scene], Awaitable[str]]
    slow: bool = False
    """Whether it takes more than a moment; the tests leave those out."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. ``detail`` says what was reached, or what was measured."""

    kind: str
    name: str
    refused: bool
    detail: str
    seconds: float


def inside(kind: str, name: str, program: str) -> Attempt:
    """An attempt by a Python program, which finds its targets in ``T`` and calls ``escaped(what)``."""

    async def act(scene: Scene) -> str:
        head = f"T = {scene.targets!r}\ndef escaped(what): print({MARK!r}, what, flush=True)\n"
        result = await scene.box.run(["python3", "-c", head + program], timeout_s=20)
        text = (result.stdout + result.stderr).decode("utf-8", "replace")
        lines = [line for line in text.splitlines() if line.startswith(MARK)]
        if not lines and result.exit_code not in (0, 137):
            return f"the attempt itself failed: {text[-300:]}"  # it proves nothing
        return "; ".join(lines)

    return Attempt(kind, name, act)


async def try_one(attempt: Attempt) -> Row:
    """Run one attempt. It also counts as a success if the host was harmed or something outlived the lease."""
    started = time.monotonic()
    async with scene() as made:
        namespace, groups, pid = _namespace(made.box.pid), made.box.groups, made.box.pid
        reached = await attempt.act(made)
        harm = made.host.harm()
        try:
            async with asyncio.timeout(5):
                await made.box.terminate()
        except TimeoutError:
            harm = harm or "the lease did not end within five seconds"
        left = await asyncio.to_thread(_left, namespace, pid)
        left += [str(group) for group in groups if group.exists()]
        detail = "; ".join(part for part in (reached, harm, f"left: {left}" if left else "") if part)
    measured = detail.startswith("measured:")
    return Row(
        attempt.kind, attempt.name, not detail or measured, detail.removeprefix("measured:").strip(),
        time.monotonic() - started,
    )  # fmt: skip


def _namespace(pid: int) -> str:
    """The pid namespace of a sandbox, by which its processes are found wherever they hide."""
    return os.readlink(f"/proc/{pid}/ns/pid_for_children") if os.geteuid() == 0 else ""  # noqa: PTH115


def _left(namespace: str, pid: int) -> list[str]:
    found = [str(pid)] if Path(f"/proc/{pid}").exists() else []
    if namespace:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if str((entry / "ns/pid").readlink()) == namespace:
                        found.append(entry.name)
    return found
