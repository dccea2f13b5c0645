"""The built-in problems as the paddock's tasks, and who grades them."""

from __future__ import annotations

from dressage_paddock import ChatMessage, Grader, GraderOnly, GradeView, Task, TaskLimits
from dressage_sandbox import Limits, SandboxFileError, SandboxSpec

from dressage_recipes.local.config import LocalConfig
from dressage_recipes.local.prompts import messages_of
from dressage_recipes.local.tasks import Problem, is_right

MIB = 1 << 20
SANDBOX = SandboxSpec(limits=Limits(memory_bytes=128 * MIB, pids=32, disk_bytes=16 * MIB, timeout_s=10.0))
"""One spec for every rollout, so that sandboxes can be made ahead of time."""
_MOST_BYTES = 4096


def task_of(problem: Problem, instance_id: str, config: LocalConfig) -> Task:
    """The paddock's task of a problem."""
    tasks = config.tasks
    limits = TaskLimits(
        max_turns=tasks.max_turns,
        timeout_s=tasks.timeout_s,
        max_tokens=tasks.max_tokens,
        tool_timeout_s=5.0,
        tool_output_bytes=512,
    )
    return Task(
        instance_id=instance_id,
        messages=tuple(ChatMessage(role, text) for role, text in messages_of(problem, tasks.protocol)),
        files=problem.files,
        grader=GraderOnly({"answer": problem.answer, "edited": problem.edited}),
        limits=limits,
        sandbox=SANDBOX,
    )


def grader_of(problem: Problem) -> Grader:
    """1 for a solved problem, 0 for any other; a file is read from the sandbox as the agent left it."""

    async def grade(view: GradeView) -> float:
        files: dict[str, bytes] = {}
        if problem.edited is not None:
            name = problem.edited[0]
            try:
                path = f"{view.task.sandbox.workdir}/{name}"
                files[name] = await view.sandbox.read(path, max_bytes=_MOST_BYTES)
            except SandboxFileError:
                return 0.0  # the agent removed it, or put something there that is no file
        return float(is_right(problem, view.final_text or "", files))

    return grade
