"""A task of one's own: what a row of a dataset asks, who works on it, and what the work is worth."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dressage_blackbox_server import COMMAND, AgentAdapter
from dressage_paddock import (
    BlackboxAgent,
    BlackboxConfig,
    Grader,
    Hooks,
    Task,
    TaskError,
    Tool,
    ToolProtocol,
    check_tools,
    default_tools,
)
from dressage_paddock.toolcalls import is_async

from dressage_recipes.errors import UsageError

Row = Mapping[str, Any]
"""One line of a dataset: a JSON object."""


@dataclass(frozen=True, slots=True)
class TaskFamily:
    """What ``tasks.family`` of a recipe names. Raises UsageError where a part cannot be what it stands for.

    The agent is a loop with ``tools``, or, where ``program`` is given, a program of yours in the sandbox.
    """

    task: Callable[[Row], Task]
    """Makes the task of a row; its ``instance_id`` must be the dataset's only one. Called once a row, before
    anything runs."""
    grade: Grader | None = None
    """``async def grade(view) -> float``: the reward of a rollout. None: the hooks have one."""
    tools: tuple[Tool, ...] = field(default_factory=default_tools)
    """What the model may call; their Python runs outside the sandbox, and is handed it."""
    protocol: ToolProtocol | None = None
    """How calls are written; None: as ``tasks.protocol`` says."""
    program: BlackboxConfig | None = None
    """A program in place of the loop: started in each rollout's sandbox, with a base URL and a prompt."""
    adapter: AgentAdapter = COMMAND
    """How the program is driven; ``dressage_blackbox_server`` has those of known agents."""
    hooks: Hooks = field(default_factory=Hooks)
    """What happens around the agent, and where the grader works."""

    def __post_init__(self) -> None:
        if not callable(self.task):
            raise UsageError(f"TaskFamily.task is {type(self.task).__name__}", fix="give a function of a row")
        if inspect.iscoroutinefunction(self.task):
            raise UsageError("TaskFamily.task is async", fix="write it with a plain `def`")
        if self.grade is None and self.hooks.grade is None:
            raise UsageError(
                "TaskFamily.grade is missing: there would be no reward", fix="give one, or Hooks(grade=...)"
            )
        if self.grade is not None and not is_async(self.grade):
            raise UsageError(
                "TaskFamily.grade is not async", fix="write `async def grade(view)`, which returns a number"
            )
        if not isinstance(self.tools, tuple):
            raise UsageError(
                f"TaskFamily.tools is {type(self.tools).__name__}", fix="give a tuple, as (MyTool(),)"
            )
        try:
            check_tools(self.tools)
        except TaskError as error:
            raise UsageError(f"TaskFamily.tools: {error}") from error
        if self.program is not None and self.protocol is not None:
            raise UsageError(
                "TaskFamily.protocol is for the loop with tools", fix="leave it out for a program"
            )
        if not isinstance(self.adapter, AgentAdapter):
            raise UsageError(
                f"TaskFamily.adapter is {type(self.adapter).__name__}",
                fix="give an AgentAdapter, as dressage_blackbox_server.CODEX",
            )
        if self.program is None:
            if self.adapter is not COMMAND:
                raise UsageError(
                    f"TaskFamily.adapter {self.adapter.name!r} is for a program",
                    fix="give program=BlackboxConfig(...) too",
                )
            return
        try:
            BlackboxAgent(adapter=self.adapter, config=self.program)
        except TaskError as error:
            raise UsageError(f"TaskFamily.program: {error}") from error
