"""One rollout: set up, let the agent act, grade, and end everything."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import TypeVar

from dressage_sandbox.errors import OutOfMemory
from dressage_sandbox.protocol import Sandbox, SandboxSpec

from dressage_paddock.agent import Agent, Scene
from dressage_paddock.artifacts import Room, collect
from dressage_paddock.course import Course
from dressage_paddock.errors import RolloutStateError, TaskError
from dressage_paddock.events import OnEvent, RolloutEvent
from dressage_paddock.failure import GRADABLE, OUT_OF_MEMORY, Ending, FailureClass, Stage, classify
from dressage_paddock.grading import ask, ask_there, fresh_spec, furnish, view_of
from dressage_paddock.hooks import (
    AfterView,
    Grade,
    GradePlace,
    Grader,
    Hooks,
    Inspection,
    Opening,
    Prepared,
    StageView,
    Verdict,
)
from dressage_paddock.lease import Lease, Released, SessionEnd, SessionRequest
from dressage_paddock.result import RolloutResult
from dressage_paddock.stages import call_hook
from dressage_paddock.task import Task
from dressage_paddock.waiting import within

TTL_MARGIN_S = 120.0
"""A sandbox lives longer than everything that a rollout may do in it, by construction."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """A task, what is done around its agent, and what its recording session is opened with."""

    task: Task
    request: SessionRequest
    owner: str
    hooks: Hooks = field(default_factory=Hooks)


class Rollout:
    """An ``async with`` block around one rollout, made by ``Paddock.rollout``.

    Inside: ``await r.run()``, then ``await r.grade(grader)``. Neither raises for a failed rollout: failures
    are data (``r.ending``), and a stage after a failure does nothing. Whatever happens, every sandbox is
    ended and the session finalised, or dropped where the block was cancelled or raised. ``r.result`` is
    there once the block has ended.
    """

    def __init__(self, plan: RolloutPlan, agent: Agent, lease: Lease, on_event: OnEvent) -> None:
        self._plan = plan
        self._agent = agent
        self._lease = lease
        self._on_event = on_event
        self._public = plan.task.public()
        self._course = Course(plan.request)
        self._sandbox: Sandbox | None = None
        self._entered = self._left = False
        self._result: RolloutResult | None = None

    @property
    def ending(self) -> Ending | None:
        """How it has ended so far; None while nothing has."""
        return self._course.ending

    @property
    def sandbox(self) -> Sandbox:
        """The live sandbox: the agent's, or the grader's once there is a fresh one.

        Raises :class:`RolloutStateError` where there is none: set-up failed, or the block has ended.
        """
        if self._sandbox is None or self._result is not None:
            raise RolloutStateError("this rollout has no live sandbox: look at r.ending")
        return self._sandbox

    @property
    def result(self) -> RolloutResult:
        """The result. Raises :class:`RolloutStateError` until the ``async with`` block has ended."""
        if self._result is None:
            raise RolloutStateError("the result is there once the 'async with' block has ended")
        return self._result

    async def __aenter__(self) -> Rollout:
        if self._entered:
            raise RolloutStateError("a rollout is used once: ask the paddock for another")
        self._entered = True
        try:
            await self._course.attempt(Stage.SETUP, self._bounded_set_up())
            await self._prepare()
        except BaseException as error:
            await self._end(error)
            raise
        return self

    async def _bounded_set_up(self) -> None:
        await within(self._public.limits.setup_timeout_s, "set-up", self._set_up())

    async def _set_up(self) -> None:
        session = await self._lease.open_session(self._plan.request)
        self._course.session_id = session.session_id
        self._emit("opened", session_id=session.session_id)
        sandbox = await self._lease.create_sandbox(self._spec(self._agent.relay(session)))
        for path, data in self._public.files.items():
            await sandbox.write(path, data)
        self._sandbox = sandbox
        self._course.scene = Scene(self._public, session, sandbox, self._emit)
        self._emit("ready", sandbox_id=sandbox.id)

    async def _prepare(self) -> None:
        hook, scene = self._plan.hooks.prepare, self._course.scene
        if hook is None or scene is None:
            return
        view = StageView(self._public, scene.sandbox)
        given = await self._hook(Stage.PREPARE, Prepared, partial(hook, view))
        self._course.stages = replace(self._course.stages, prepared=given)

    async def _hook(self, stage: Stage, kind: type[T], hook: Callable[[], Awaitable[T | None]]) -> T | None:
        limit = self._public.limits.hook_timeout_s
        return await self._course.attempt(stage, call_hook(stage, kind, hook, limit))

    def _spec(self, relay: str | None) -> SandboxSpec:
        spec = self._plan.task.sandbox
        if relay is not None and spec.relay not in (None, relay):
            raise TaskError(f"sandbox.relay is {spec.relay!r} but the gateway is at {relay!r}: leave it None")
        return self._owned(replace(spec, relay=relay or spec.relay))

    def _owned(self, spec: SandboxSpec) -> SandboxSpec:
        """With who holds it, and an expiry beyond all that may be done in it."""
        owner = f"{spec.owner or self._plan.owner}/{self._plan.request.rollout_id}"
        ttl_s = max(spec.ttl_s, self._public.limits.total_s + TTL_MARGIN_S)
        return replace(spec, owner=owner, ttl_s=ttl_s)

    def _check_inside(self, method: str) -> None:
        if not self._entered or self._left:
            raise RolloutStateError(f"{method}() belongs inside the 'async with' block")

    async def run(self) -> Ending:
        """Let the agent act until it ends, then read the task's artifacts."""
        self._check_inside("run")
        scene = self._course.scene
        if scene is None or self._course.ending is not None:
            return self._course.ended
        await self._before_agent(scene)
        if self._course.ending is None:
            ending = await self._course.attempt(Stage.AGENT, self._act(scene))
            self._course.ending = ending or self._course.ended
            await self._collect(scene)
            await self._after_agent(scene)
        ending = self._course.ended
        self._emit("agent_ended", failure_class=ending.failure_class, turns=scene.turns)
        return ending

    async def _before_agent(self, scene: Scene) -> None:
        hook = self._plan.hooks.before_agent
        if hook is None:
            return
        view = StageView(self._public, scene.sandbox)
        given = await self._hook(Stage.BEFORE_AGENT, Opening, partial(hook, view))
        if given is not None and given.messages:
            scene.task = replace(self._public, messages=given.messages)
        self._course.stages = replace(self._course.stages, opening=given)

    async def _act(self, scene: Scene) -> Ending:
        return await within(self._public.limits.timeout_s, "the agent's part", self._agent.act(scene))

    async def _collect(self, scene: Scene) -> None:
        """Read the artifacts back, of a failed rollout too: there they show why. Only a rollout that could
        be graded is failed by artifacts that cannot be read."""
        limits, ending = self._public.limits, self._course.ended
        sizes = limits.artifact_bytes, limits.artifact_total_bytes, limits.artifact_files
        room = Room(*sizes, seconds=limits.setup_timeout_s / 2)
        work = collect(scene.sandbox, self._plan.task.artifacts, room, self._public.workdir)
        try:
            self._course.artifacts = await within(limits.setup_timeout_s, "reading artifacts", work)
        except Exception as error:  # noqa: BLE001 - a sandbox that died by itself is classified
            if ending.failure_class in GRADABLE:
                self._course.ending = classify(error, Stage.END)

    async def _after_agent(self, scene: Scene) -> None:
        hook, course = self._plan.hooks.after_agent, self._course
        if hook is None or course.ended.failure_class not in GRADABLE:
            return
        told = tuple(scene.transcript), scene.output
        view = AfterView(self._public, scene.sandbox, *told, course.ended, course.artifacts)
        given = await self._hook(Stage.AFTER_AGENT, Inspection, partial(hook, view))
        if given is None:
            return
        course.stages = replace(course.stages, inspection=given)
        files = {**course.artifacts.files, **given.artifacts}
        course.artifacts = replace(course.artifacts, files=files)
        self._judge(given.verdict, Stage.AFTER_AGENT)

    def _judge(self, verdict: Verdict | None, stage: Stage) -> None:
        if verdict is not None:
            self._course.ending = verdict.ending(stage)
            self._emit("verdict", failure_class=verdict.failure_class, code=verdict.code)

    async def grade(self, grader: Grader | None = None) -> float | None:
        """Ask ``grader`` (default: the hooks') for the reward, where the hooks say that it works.

        None where the rollout left nothing to grade, where the grader failed (then the rollout's class is
        infrastructure, and it never counts as a reward of 0), or where its verdict takes the number back.
        """
        self._check_inside("grade")
        course, chosen = self._course, grader or self._plan.hooks.grade
        ending = course.ended
        if chosen is None:
            raise RolloutStateError("there is no grader: give one to grade(), or hooks with one")
        if course.scene is None or ending.failure_class not in GRADABLE:
            return None
        given = await course.attempt(Stage.GRADE, self._graded(chosen, course.scene, ending))
        if given is None:
            return None
        course.stages = replace(course.stages, grade=given)
        self._judge(given.verdict, Stage.GRADE)
        if course.ended.failure_class in GRADABLE:
            course.reward = float(given.reward)
            self._emit("graded", reward=course.reward)
        return course.reward

    async def _graded(self, grader: Grader, scene: Scene, ending: Ending) -> Grade:
        view = view_of(self._plan.task, self._agent, scene, ending, self._course.artifacts)
        if self._plan.hooks.grade_in is not GradePlace.FRESH and ending.code != OUT_OF_MEMORY:
            try:
                quiet = self._plan.hooks.grade_in is GradePlace.QUIET
                return await ask_there(grader, view, self._public.limits.grade_timeout_s, quiet=quiet)
            except OutOfMemory as error:
                # What the agent left has used the sandbox up: its own doing, and graded without that sandbox.
                ending = self._course.ending = classify(error, Stage.AFTER_AGENT)
        sandbox = await self._fresh_sandbox()
        view = replace(view, ending=ending, sandbox=sandbox, artifacts=self._course.artifacts)
        return await ask(grader, view, self._public.limits.grade_timeout_s)

    async def _fresh_sandbox(self) -> Sandbox:
        """The agent's sandbox ends first: it can neither see the grader's, nor hold a place that it needs."""
        self._sandbox = None
        if (error := await self._lease.end_sandboxes()) is not None:
            self._emit("cleanup_failed", detail=classify(error, Stage.GRADE).detail)
        spec = self._owned(fresh_spec(self._plan.task, self._plan.hooks))
        limit = self._public.limits.setup_timeout_s
        self._sandbox = await within(limit, "the grader's sandbox", self._furnished(spec))
        return self._sandbox

    async def _furnished(self, spec: SandboxSpec) -> Sandbox:
        sandbox = await self._lease.create_sandbox(spec)
        self._course.artifacts = await furnish(sandbox, self._public, self._course.artifacts)
        return sandbox

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end(error)

    async def _end(self, error: BaseException | None) -> None:
        """End the lease and make the result. ``error`` is what left the block, if anything did."""
        self._left = True
        course = self._course
        if error is not None:
            course.ending = replace(classify(error, Stage.END), failure_class=FailureClass.ABORTED)
        elif course.ending is None:
            course.ending = Ending(FailureClass.ABORTED, "not_run", "run() was never called", Stage.END)
        if course.ending.failure_class is FailureClass.ABORTED:
            course.reward = None
            end = SessionEnd()
        else:
            outcome = {"reward": course.reward, "turns": course.turns, "code": course.ending.code}
            end = SessionEnd(str(course.ending.failure_class), outcome)
        with course.timed(Stage.END):
            released = await self._lease.release(end)
        self._conclude(released)

    def _conclude(self, released: Released) -> None:
        ending = self._course.ended
        # What came first is why the rest failed too.
        told = (FailureClass.ABORTED, FailureClass.INFRASTRUCTURE)
        if released.session_error is not None and ending.failure_class not in told:
            self._course.reward = None
            ending = classify(released.session_error, Stage.END)
            self._course.ending = replace(ending, failure_class=FailureClass.INFRASTRUCTURE)
        for error in (released.session_error, released.sandbox_error):
            if error is not None:
                self._emit("cleanup_failed", detail=classify(error, Stage.END).detail)
        self._result = self._course.result(released)
        self._emit("ended", failure_class=self._result.failure_class, turns=self._course.turns)

    def _emit(self, name: str, **data: str | int | float) -> None:
        request = self._plan.request
        self._on_event(RolloutEvent(name, request.instance_id, request.rollout_id, data))
