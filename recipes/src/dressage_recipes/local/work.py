"""What a run's rollouts work on: the built-in problems, or a family's own tasks."""

from __future__ import annotations

import inspect
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx
from dressage_paddock import (
    BlackboxPaddock,
    Grader,
    ModelGateway,
    Paddock,
    PaddockConfig,
    ShellTool,
    Task,
    TaskError,
    WhiteboxPaddock,
)
from dressage_sandbox import SandboxProvider, SandboxSpec

from dressage_recipes.errors import UsageError
from dressage_recipes.family import TaskFamily
from dressage_recipes.local.config import LocalConfig
from dressage_recipes.local.dataset import OwnTasks, load_own_tasks, longest
from dressage_recipes.local.problems import SANDBOX, grader_of, task_of
from dressage_recipes.local.prompts import tool_protocol
from dressage_recipes.local.tasks import make_problem

CLEANUP_S = 20.0
"""How long ending one sandbox or session may hold up a step."""


@dataclass(frozen=True, slots=True)
class Work:
    """One group of rollouts: the task, and who grades it (None: the hooks)."""

    task: Task
    grade: Grader | None
    labels: Mapping[str, str] = field(default_factory=dict)


class Source(Protocol):
    """Where a step's work comes from, and what works on it."""

    def schemas(self) -> list[dict[str, Any]]:
        """The tools that prompts offer; none where they say it in words, or where a program is the agent."""

    @property
    def sandbox(self) -> SandboxSpec | None:
        """The one spec of every rollout, which can be made ahead of time; None where there is none."""

    @property
    def files(self) -> frozenset[str]:
        """Whose code runs in the loop and is not ours."""

    def draw(self, step: int, count: int) -> list[Work]:
        """The work of a step. The same config draws the same."""

    def examples(self) -> list[Task]:
        """Tasks whose prompts show whether the model can be asked at all."""

    def paddock(self, provider: SandboxProvider, gateway: ModelGateway, http: httpx.AsyncClient) -> Paddock:
        """What runs the rollouts."""


def open_source(config: LocalConfig) -> Source:
    """What ``[tasks]`` describes. Raises UsageError."""
    if not config.tasks.family:
        return BuiltInWork(config)
    source = OwnWork(config, load_own_tasks(config.tasks))
    try:
        source.schemas()
    except TaskError as error:
        raise UsageError(
            f"tasks.family {config.tasks.family}: {error}",
            fix="see tasks.protocol, TaskFamily.protocol and TaskFamily.tools",
        ) from error
    return source


class BuiltInWork:
    """The demo's problems, drawn at random."""

    sandbox: SandboxSpec | None = SANDBOX
    files: frozenset[str] = frozenset()

    def __init__(self, config: LocalConfig) -> None:
        self._config = config
        self._rng = random.Random(config.seed + 3000)
        self._tools = (ShellTool(),)
        self._protocol = tool_protocol(config.tasks.protocol)

    def schemas(self) -> list[dict[str, Any]]:
        """The shell's, where calls are native."""
        return self._protocol.schemas(self._tools)

    def draw(self, step: int, count: int) -> list[Work]:
        """Freshly made problems."""
        problems = [make_problem(self._rng, self._config.tasks.weights) for _ in range(count)]
        return [
            Work(
                task_of(problem, group_name(step, number), self._config),
                grader_of(problem),
                {"variant": problem.variant.value},
            )
            for number, problem in enumerate(problems)
        ]

    def examples(self) -> list[Task]:
        """One: all are about as long."""
        problem = make_problem(random.Random(0), self._config.tasks.weights)
        return [task_of(problem, "example", self._config)]

    def paddock(self, provider: SandboxProvider, gateway: ModelGateway, http: httpx.AsyncClient) -> Paddock:
        """The loop with a shell."""
        return WhiteboxPaddock(
            provider,
            gateway,
            http,
            tools=self._tools,
            protocol=self._protocol,
            config=PaddockConfig(cleanup_s=CLEANUP_S),
        )


class OwnWork:
    """A family's tasks, each once an epoch, in an order that the seed decides."""

    def __init__(self, config: LocalConfig, own: OwnTasks) -> None:
        self._config = config
        self._family: TaskFamily = own.family
        self._tasks = own.tasks
        self._rng = random.Random(config.seed + 3000)
        self._left = list[Task]()
        self._protocol = own.family.protocol or tool_protocol(config.tasks.protocol)

    def schemas(self) -> list[dict[str, Any]]:
        """The family's tools, where calls are native; a program brings its own."""
        return [] if self._family.program else self._protocol.schemas(self._family.tools)

    @property
    def sandbox(self) -> SandboxSpec | None:
        """The tasks' spec, if all have one and the same and no relay is added to it for a program."""
        first = self._tasks[0].sandbox
        alike = self._family.program is None and all(task.sandbox == first for task in self._tasks)
        return first if alike else None

    @property
    def files(self) -> frozenset[str]:
        """Where the grader, the hooks and the tools are written, but for the paddock's own tools."""
        family, hooks = self._family, self._family.hooks
        parts = [family.grade, hooks.prepare, hooks.before_agent, hooks.after_agent, hooks.grade]
        written = {_file_of(part) for part in (*parts, *(type(tool) for tool in family.tools)) if part}
        return frozenset(written - {_file_of(ShellTool), ""})

    def draw(self, step: int, count: int) -> list[Work]:
        """The next tasks of the epoch; a new one begins where it ends."""
        drawn = list[Work]()
        while len(drawn) < count:
            if not self._left:
                self._left = list(self._tasks)
                if self._config.tasks.shuffle:
                    self._rng.shuffle(self._left)
                self._left.reverse()
            drawn.append(Work(self._left.pop(), self._family.grade))
        return drawn

    def examples(self) -> list[Task]:
        """The longest prompts."""
        return longest(self._tasks)

    def paddock(self, provider: SandboxProvider, gateway: ModelGateway, http: httpx.AsyncClient) -> Paddock:
        """The loop with the family's tools, or its program."""
        family, hooks = self._family, self._family.hooks
        if family.program is None:
            return WhiteboxPaddock(
                provider,
                gateway,
                http,
                tools=family.tools,
                protocol=self._protocol,
                config=PaddockConfig(cleanup_s=CLEANUP_S),
                hooks=hooks,
            )
        # The loop counts its own turns; a program's model calls are counted by the recorder.
        limits = {"max_steps": self._config.tasks.max_turns}
        return BlackboxPaddock(
            provider,
            gateway,
            adapter=family.adapter,
            blackbox=family.program,
            config=PaddockConfig(cleanup_s=CLEANUP_S, session_limits=limits),
            hooks=hooks,
        )


def _file_of(part: object) -> str:
    """The file that a function or class is written in; "" where none is known."""
    try:
        return inspect.getfile(inspect.unwrap(part))  # type: ignore[arg-type]
    except TypeError:  # an object that is called, or a part of the interpreter
        return "" if isinstance(part, type) else _file_of(type(part))


def group_name(step: int, number: int) -> str:
    """The name of a step's group of rollouts."""
    return f"step{step:04d}-problem{number:02d}"
