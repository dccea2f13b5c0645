"""What an attempt is, and what becomes of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._scene import Scene

__all__ = ["Attempt", "Row", "inside"]

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
