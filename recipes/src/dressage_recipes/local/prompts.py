"""What the agent is told: the bare problem, or instructions and one example where calls are text."""

from __future__ import annotations

from typing import Literal

from dressage_paddock import NativeCallProtocol, ToolProtocol

from dressage_recipes.local.smol_task import text_messages, text_protocol
from dressage_recipes.local.tasks import Problem

Protocol = Literal["native", "text"]


def tool_protocol(name: Protocol) -> ToolProtocol:
    """How calls are read from replies and results are given back."""
    return NativeCallProtocol() if name == "native" else text_protocol()


def messages_of(problem: Problem, protocol: Protocol) -> list[tuple[str, str]]:
    """Role and text of the messages that a rollout starts with."""
    if protocol == "native":
        return [("user", problem.prompt)]
    return [(message.role, message.content) for message in text_messages(problem)]
