"""One rollout: set up, let the agent act, grade, and end everything."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType

from dressage_sandbox.protocol import Sandbox, SandboxSpec

from dressage_paddock.agent import Agent, Scene
from dressage_paddock.artifacts import Artifacts, collect
from dressage_paddock.errors import GraderFailedError, RolloutStateError, TaskError
from dressage_paddock.events import OnEvent, RolloutEvent
from dressage_paddock.failure import GRADABLE, Ending, FailureClass, Stage, classify
from dressage_paddock.lease import Lease, Released, SessionEnd, SessionRequest
from dressage_paddock.messages import final_text, model_text
from dressage_paddock.result import Grader, GradeView, RolloutResult
from dressage_paddock.task import Task
from dressage_paddock.waiting import within

TTL_MARGIN_S = 120.0
"""A sandbox lives longer than everything that a rollout may do in it, by construction."""


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """A task and what its recording session is opened with."""

    task: Task
    request: SessionRequest
    owner: str


class Rollout:
    """An ``async with`` block around one rollout, made by ``Paddock.rollout``.

    Inside: ``await r.run()``, then ``await r.grade(grader)``. Neither raises for a failed rollout: failures
    are data (``r.ending``), and a stage after a failure does nothing. Whatever happens, the sandbox is
    ended and the session finalised, or dropped where the block was cancelled or raised. ``r.result`` is
    there once the block has ended.
    """

    def __init__(self, plan: RolloutPlan, agent: Agent, lease: Lease, on_event: OnEvent) -> None:
        self._plan = plan
        self._agent = agent
        self._lease = lease
        self._on_event = on_event
        self._public = plan.task.public()
        self._session_id = ""
        self._scene: Scene | None = None
        self._ending: Ending | None = None
        self._reward: float | None = None
        self._artifacts = Artifacts()
        self._seconds: dict[str, float] = {}
        self._entered = False
        self._result: RolloutResult | None = None

    @property
    def ending(self) -> Ending | None:
        """How it has ended so far; None while nothing has."""
        return self._ending

    @property
    def sandbox(self) -> Sandbox:
        """The live sandbox. Raises :class:`RolloutStateError` where set-up failed or the block has ended."""
        if self._scene is None or self._result is not None:
            raise RolloutStateError("this rollout has no live sandbox: look at r.ending")
        return self._scene.sandbox

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
            with self._timed(Stage.SETUP):
                await within(self._public.limits.setup_timeout_s, "set-up", self._set_up())
        except Exception as error:  # noqa: BLE001 - every failure is classified, none is dropped
            self._ending = classify(error, Stage.SETUP)
        except BaseException as error:
            await self._end(error)
            raise
        return self

    async def _set_up(self) -> None:
        session = await self._lease.open_session(self._plan.request)
        self._session_id = session.session_id
        self._emit("opened", session_id=session.session_id)
        sandbox = await self._lease.create_sandbox(self._spec(self._agent.relay(session)))
        for path, data in self._public.files.items():
            await sandbox.write(path, data)
        self._scene = Scene(self._public, session, sandbox, self._emit)
        self._emit("ready", sandbox_id=sandbox.id)

    def _spec(self, relay: str | None) -> SandboxSpec:
        spec = self._plan.task.sandbox
        if relay is not None and spec.relay not in (None, relay):
            raise TaskError(f"sandbox.relay is {spec.relay!r} but the gateway is at {relay!r}: leave it None")
        owner = f"{spec.owner or self._plan.owner}/{self._plan.request.rollout_id}"
        ttl_s = max(spec.ttl_s, self._public.limits.total_s + TTL_MARGIN_S)
        return replace(spec, relay=relay or spec.relay, owner=owner, ttl_s=ttl_s)

    async def run(self) -> Ending:
        """Let the agent act until it ends, then read the task's artifacts."""
        if not self._entered or self._result is not None:
            raise RolloutStateError("run() belongs inside the 'async with' block")
        scene = self._scene
        if scene is None or self._ending is not None:
            return self._need_ending()
        try:
            with self._timed(Stage.AGENT):
                limit = self._public.limits.timeout_s
                self._ending = await within(limit, "the agent's part", self._agent.act(scene))
        except Exception as error:  # noqa: BLE001 - every failure is classified, none is dropped
            self._ending = classify(error, Stage.AGENT)
        if self._ending.failure_class in GRADABLE:
            await self._collect(scene)
        self._emit("agent_ended", failure_class=self._ending.failure_class, turns=scene.turns)
        return self._ending

    async def _collect(self, scene: Scene) -> None:
        limits = self._public.limits
        work = collect(scene.sandbox, self._plan.task.artifacts, limits.artifact_bytes, self._public.workdir)
        try:
            self._artifacts = await within(limits.setup_timeout_s, "reading artifacts", work)
        except Exception as error:  # noqa: BLE001 - a sandbox that died by itself is classified
            self._ending = classify(error, Stage.END)

    async def grade(self, grader: Grader) -> float | None:
        """Ask ``grader`` for the reward, on the sandbox as the agent left it.

        None where the rollout left nothing to grade, or where the grader failed: then the rollout's class
        is infrastructure, and it never counts as a reward of 0.
        """
        ending = self._need_ending()
        if self._scene is None or ending.failure_class not in GRADABLE:
            return None
        try:
            with self._timed(Stage.GRADE):
                self._reward = await self._ask(grader, self._view(self._scene, ending))
            self._emit("graded", reward=self._reward)
        except Exception as error:  # noqa: BLE001 - every failure is classified, none is dropped
            self._ending = classify(error, Stage.GRADE)
        return self._reward

    async def _ask(self, grader: Grader, view: GradeView) -> float:
        seconds = self._public.limits.grade_timeout_s
        try:
            reward = await within(seconds, "the grader", grader(view))
        except Exception as error:
            raise GraderFailedError(f"the grader failed: {type(error).__name__}: {error}") from error
        if isinstance(reward, bool | int | float) and math.isfinite(reward):
            return float(reward)
        raise GraderFailedError(f"the grader gave {reward!r}: give a finite number")

    def _view(self, scene: Scene, ending: Ending) -> GradeView:
        transcript = tuple(scene.transcript)
        own = self._agent.speaks_as_model
        return GradeView(
            task=self._plan.task,
            transcript=transcript,
            model_text=model_text(transcript) if own else None,
            final_text=final_text(transcript) if own else None,
            agent_output=scene.output,
            ending=ending,
            sandbox=scene.sandbox,
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end(error)

    async def _end(self, error: BaseException | None) -> None:
        """End the lease and make the result. ``error`` is what left the block, if anything did."""
        if error is not None:
            self._ending = replace(classify(error, Stage.END), failure_class=FailureClass.ABORTED)
        elif self._ending is None:
            self._ending = Ending(FailureClass.ABORTED, "not_run", "run() was never called", Stage.END)
        if self._ending.failure_class is FailureClass.ABORTED:
            self._reward = None
            end = SessionEnd()
        else:
            outcome = {"reward": self._reward, "turns": self._turns, "code": self._ending.code}
            end = SessionEnd(str(self._ending.failure_class), outcome)
        with self._timed(Stage.END):
            released = await self._lease.release(end)
        self._conclude(released)

    def _conclude(self, released: Released) -> None:
        ending = self._need_ending()
        if released.session_error is not None and ending.failure_class is not FailureClass.ABORTED:
            self._reward = None
            ending = classify(released.session_error, Stage.END)
            self._ending = replace(ending, failure_class=FailureClass.INFRASTRUCTURE)
        for error in (released.session_error, released.sandbox_error):
            if error is not None:
                self._emit("cleanup_failed", detail=classify(error, Stage.END).detail)
        self._result = self._make_result(released)
        self._emit("ended", failure_class=self._result.failure_class, turns=self._turns)

    def _make_result(self, released: Released) -> RolloutResult:
        ending = self._need_ending()
        request = self._plan.request
        return RolloutResult(
            instance_id=request.instance_id,
            group_id=request.group_id or "",
            rollout_id=request.rollout_id,
            session_id=self._session_id,
            failure_class=ending.failure_class,
            reward=self._reward,
            turns=self._turns,
            transcript=tuple(self._scene.transcript) if self._scene else (),
            agent_output=self._scene.output if self._scene else "",
            artifacts=self._artifacts.files,
            missing_artifacts=self._artifacts.missing,
            cut_artifacts=self._artifacts.cut,
            finalize=released.finalize,
            ending=ending,
            seconds=dict(self._seconds),
        )

    @property
    def _turns(self) -> int:
        return self._scene.turns if self._scene else 0

    def _need_ending(self) -> Ending:
        if self._ending is None:
            raise RolloutStateError("the agent has not run yet: await r.run() first")
        return self._ending

    def _emit(self, name: str, **data: str | int | float) -> None:
        request = self._plan.request
        self._on_event(RolloutEvent(name, request.instance_id, request.rollout_id, data))

    @contextmanager
    def _timed(self, stage: Stage) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds[str(stage)] = time.monotonic() - began
