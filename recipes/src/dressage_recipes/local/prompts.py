"""What the agent is told: the bare problem, or instructions and one example where calls are text."""

from __future__ import annotations

from typing import Literal

from dressage_paddock import NativeCallProtocol, TextCallProtocol, ToolProtocol

from dressage_recipes.local.tasks import Problem

Protocol = Literal["native", "text"]

_INSTRUCTIONS = (
    "You answer questions about files. To look into a file, write <call>cat NAME</call> and nothing else. "
    "You then get its content. Answer with the number alone."
)
_EXAMPLE = (
    ("user", "What number is in the file river?"),
    ("assistant", "<call>cat river</call>"),
    ("user", "Output: 58"),
    ("assistant", "58"),
)


def tool_protocol(name: Protocol) -> ToolProtocol:
    """How calls are read from replies and results are given back."""
    return NativeCallProtocol() if name == "native" else TextCallProtocol(result="Output: {output}")


def messages_of(problem: Problem, protocol: Protocol) -> list[tuple[str, str]]:
    """Role and text of the messages that a rollout starts with."""
    if protocol == "native":
        return [("user", problem.prompt)]
    return [("system", _INSTRUCTIONS), *_EXAMPLE, ("user", problem.prompt)]
