"""What a grader is given, and what is made of its answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

from dressage_sandbox.errors import OutOfMemory, SandboxFileError
from dressage_sandbox.protocol import Sandbox, SandboxSpec

from dressage_paddock.agent import Agent, Scene
from dressage_paddock.artifacts import Artifacts
from dressage_paddock.errors import GraderFailedError
from dressage_paddock.failure import Ending
from dressage_paddock.hooks import Grade, Grader, GradeView, Hooks
from dressage_paddock.messages import final_text, model_text
from dressage_paddock.task import PublicTask, Task
from dressage_paddock.waiting import within

_MAKE_WAY = 'rm -rf -- "$1"; shift; for p do [ -d "$p" ] || rm -f -- "$p"; done'
"""Of a file's place and the folders that it lies in, removes what is of another kind."""


def view_of(task: Task, agent: Agent, scene: Scene, ending: Ending, artifacts: Artifacts) -> GradeView:
    """The view on the agent's own sandbox."""
    transcript = tuple(scene.transcript)
    own = agent.speaks_as_model
    return GradeView(
        task=task,
        transcript=transcript,
        model_text=model_text(transcript) if own else None,
        final_text=final_text(transcript) if own else None,
        agent_output=scene.output,
        ending=ending,
        sandbox=scene.sandbox,
        artifacts=artifacts,
    )


def fresh_spec(task: Task, hooks: Hooks) -> SandboxSpec:
    """The grader's own sandbox: it reaches no model."""
    return hooks.grade_spec or replace(task.sandbox, relay=None)


async def furnish(sandbox: Sandbox, task: PublicTask, artifacts: Artifacts) -> Artifacts:
    """Write the task's files, then the artifacts over them and in their place: an agent may have made a
    folder of a file. A cut one is left out: it is not what the agent made.

    Returns the artifacts, with one that cannot be written there among the cut: it is the agent's doing, and
    no failure of the sandbox.
    """
    workdir = PurePosixPath(task.workdir)
    places = {name: workdir / name for name in artifacts.whole}
    taken, above = set(places.values()), {folder for place in places.values() for folder in place.parents}
    for path, data in task.files.items():
        in_the_way = workdir / path in above or not taken.isdisjoint((workdir / path).parents)
        if not in_the_way:
            await sandbox.write(path, data)
    left_out = [name for name in places if not await _put(sandbox, places[name], artifacts.files[name])]
    return replace(artifacts, cut=(*artifacts.cut, *left_out))


async def _put(sandbox: Sandbox, place: PurePosixPath, data: bytes) -> bool:
    """Write a file, also where something of another kind is there already (of an image, say)."""
    try:
        await sandbox.write(str(place), data)
    except SandboxFileError:
        await sandbox.run(["sh", "-c", _MAKE_WAY, "sh", str(place), *map(str, place.parents)])
        try:
            await sandbox.write(str(place), data)
        except SandboxFileError:
            return False
    return True


async def ask(grader: Grader, view: GradeView, seconds: float) -> Grade:
    """The grader's answer as a grade.

    Raises :class:`GraderFailedError` where it raised, took too long or gave no finite number.
    """
    try:
        given = await within(seconds, "the grader", grader(view))
    except (Exception, SystemExit) as error:  # a test runner that ends "the program" is no end of ours
        raise GraderFailedError(f"the grader failed: {type(error).__name__}: {error}") from error
    grade = given if isinstance(given, Grade) else Grade(given)
    if not grade.finite:
        raise GraderFailedError(f"the grader gave {grade.reward!r}: give a finite number")
    return grade


async def ask_there(grader: Grader, view: GradeView, seconds: float, *, quiet: bool) -> Grade:
    """As :func:`ask`, in the agent's own sandbox; ``quiet``: after everything that runs in it has ended.

    Raises ``OutOfMemory`` where the sandbox has died of what is left in it.
    """
    try:
        if quiet:
            await view.sandbox.quiet()
        return await ask(grader, view, seconds)
    except GraderFailedError as error:
        if isinstance(error.__cause__, OutOfMemory):
            raise error.__cause__ from error
        raise
