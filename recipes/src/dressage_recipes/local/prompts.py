"""What the agent is told: the bare problem, or instructions and one example where calls are text."""

from __future__ import annotations

from typing import Literal

from dressage_paddock import NativeCallProtocol, TextCallProtocol, ToolProtocol

from dressage_recipes.local.tasks import Problem, Variant

Protocol = Literal["native", "text"]
_READING = (Variant.READ, Variant.FOLLOW)

_INSTRUCTIONS = "You read files with <call>cat NAME</call> and answer with the number in them."
_QUESTION = "Which number is in the file {name}? Read it with <call>cat NAME</call>"
_EXAMPLE = (
    ("user", "Which number is in the file river? Read it with <call>cat river</call>"),
    ("assistant", "<call>cat river</call>"),
    ("user", "Output: 58"),
    ("assistant", "58"),
)
"""One example: pretrained weights that were never trained on tools need to see a call once."""


def tool_protocol(name: Protocol) -> ToolProtocol:
    """How calls are read from replies and results are given back."""
    return NativeCallProtocol() if name == "native" else TextCallProtocol(result="Output: {output}")


def messages_of(problem: Problem, protocol: Protocol) -> list[tuple[str, str]]:
    """Role and text of the messages that a rollout starts with."""
    if protocol == "native":
        return [("user", problem.prompt)]
    asked = _QUESTION.format(name=problem.name) if problem.variant in _READING else problem.prompt
    return [("system", _INSTRUCTIONS), *_EXAMPLE, ("user", asked)]
