"""Hooks: their order, what each may see and give, and what its failure means."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from dressage_paddock import (
    ChatMessage,
    FailureClass,
    Grade,
    GradePlace,
    GraderOnly,
    Hooks,
    Inspection,
    Opening,
    Prepared,
    RolloutStateError,
    RunnerOnly,
    Stage,
    Task,
    TaskError,
    TaskLimits,
    Verdict,
    WhiteboxPaddock,
)
from dressage_paddock.fake import ScriptedGateway, call, say
from dressage_paddock.task import PublicMetadata
from dressage_sandbox import SandboxGone, SandboxSpec, SandboxStartFailed
from dressage_sandbox.fake import FakeProvider, completed

TASK = Task(
    "t",
    prompt="p",
    files={"a": b"1"},
    artifacts=("out",),
    metadata=PublicMetadata({"language": "python"}),
    runner=RunnerOnly({"weight": 2}),
    grader=GraderOnly({"label": "42"}),
)


class Recording:
    """Hooks that note the order in which they are called, and what they saw."""

    def __init__(self, **given: object) -> None:
        self.seen: list[str] = []
        self.views: dict[str, object] = {}
        self.given = given

    def _note(self, name: str, view: object) -> object:
        self.seen.append(name)
        self.views[name] = view
        given = self.given.get(name)
        if isinstance(given, Exception):
            raise given
        return given

    async def prepare(self, view):
        await view.sandbox.write("prepared", b"yes")
        return self._note("prepare", view)

    async def before_agent(self, view):
        return self._note("before_agent", view)

    async def after_agent(self, view):
        return self._note("after_agent", view)

    async def grade(self, view):
        return self._note("grade", view)

    def hooks(self, **settings: object) -> Hooks:
        return Hooks(self.prepare, self.before_agent, self.after_agent, self.grade, **settings)


async def test_the_stages_come_in_their_order_and_their_typed_results_are_kept(fakes):
    given = {
        "prepare": Prepared({"commit": "abc"}),
        "before_agent": Opening((ChatMessage("user", "worded anew"),)),
        "after_agent": Inspection(artifacts={"diff": b"+1"}, notes={"files_changed": 1}),
        "grade": Grade(0.5, {"tests": 1.0, "style": 0.0}),
    }
    recording = Recording(**given)
    parts = fakes([call("write", path="out", content="x"), say("done")], hooks=recording.hooks())
    result = await parts.paddock.run(TASK)
    assert recording.seen == ["prepare", "before_agent", "after_agent", "grade"]
    assert dataclasses.astuple(result.stages) == tuple(dataclasses.astuple(g) for g in given.values())
    assert (result.reward, result.failure_class) == (0.5, FailureClass.COMPLETED)
    assert result.artifacts == {"out": b"x", "diff": b"+1"}
    assert result.transcript[0].content == "worded anew"
    assert list(result.seconds) == [
        "setup", "prepare", "before_agent", "agent", "after_agent", "grade", "end",
    ]  # fmt: skip
    assert recording.views["after_agent"].artifacts.files == {"out": b"x"}
    assert recording.views["grade"].artifacts.files == {"out": b"x", "diff": b"+1"}
    parts.assert_nothing_left()


async def test_no_hook_before_grading_is_handed_the_runners_or_the_graders_part(fakes):
    recording = Recording(grade=1.0)
    await fakes([say("done")], hooks=recording.hooks()).paddock.run(TASK)
    for name in ("prepare", "before_agent", "after_agent"):
        task = recording.views[name].task
        assert not hasattr(task, "grader")
        assert not hasattr(task, "runner")
        assert task.metadata == {"language": "python"}
    assert recording.views["grade"].task.grader.values == {"label": "42"}


@pytest.mark.parametrize("kind", ["prepare", "before_agent", "after_agent"])
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (ValueError("pip failed"), "hook_failed"),
        (SandboxGone("gone"), "sandbox_failed"),
        ("no such type", "hook_failed"),
    ],
)
async def test_p8_a_hook_that_fails_is_infrastructure_of_its_stage_and_ends_the_rollout(
    fakes, kind, fault, code
):
    recording = Recording(**{kind: fault, "grade": 1.0})
    parts = fakes([say("done")], hooks=recording.hooks())
    result = await parts.paddock.run(TASK)
    assert (result.failure_class, result.ending.code) == (FailureClass.INFRASTRUCTURE, code)
    assert (str(result.ending.stage), result.reward, recording.seen[-1]) == (kind, None, kind)
    assert str(fault).split("'", maxsplit=1)[0] in result.ending.detail
    parts.assert_nothing_left()


@pytest.mark.parametrize("kind", ["prepare", "before_agent", "after_agent"])
async def test_a_hook_that_takes_too_long_is_infrastructure_with_its_own_code(fakes, kind):
    async def slow(view):
        await asyncio.sleep(60)

    parts = fakes([say("done")], hooks=Hooks(**{kind: slow}))
    result = await parts.paddock.run(dataclasses.replace(TASK, limits=TaskLimits(hook_timeout_s=0.05)))
    assert (result.failure_class, result.ending.code) == (FailureClass.INFRASTRUCTURE, f"{kind}_timeout")
    parts.assert_nothing_left()


def plain(view):
    raise ZeroDivisionError


@pytest.mark.parametrize("kind", ["prepare", "before_agent", "after_agent", "grade"])
async def test_a_hook_that_is_no_coroutine_function_and_raises_is_data_too(fakes, kind):
    parts = fakes([say("done")], hooks=Hooks(**{kind: plain}))
    result = await parts.paddock.run(TASK)
    assert result.failure_class is FailureClass.INFRASTRUCTURE
    assert "ZeroDivisionError" in result.ending.detail
    parts.assert_nothing_left()


async def test_a_verdict_after_the_agent_takes_the_place_of_the_class_and_nothing_is_graded(fakes):
    cheated = Verdict(FailureClass.SUSPECTED_CHEATING, "read_the_tests", "opened /tests")
    recording = Recording(after_agent=Inspection(cheated), grade=1.0)
    events = []
    parts = fakes([say("done")], hooks=recording.hooks(), on_event=events.append)
    result = await parts.paddock.run(TASK)
    assert (result.failure_class, result.ending.code) == (FailureClass.SUSPECTED_CHEATING, "read_the_tests")
    assert (result.reward, "grade" in recording.seen) == (None, False)
    assert [s.failure_class for s in parts.gateway.sessions.values()] == ["suspected_cheating"]
    assert [e.data["code"] for e in events if e.name == "verdict"] == ["read_the_tests"]


@pytest.mark.parametrize(
    ("failure_class", "reward"),
    [
        (FailureClass.SUSPECTED_CHEATING, None),
        (FailureClass.STALE, None),
        (FailureClass.INFRASTRUCTURE, None),
        (FailureClass.POLICY_FAILURE, 1.0),
    ],
)
async def test_a_graders_verdict_keeps_its_number_only_where_the_class_may_be_graded(
    fakes, failure_class, reward
):
    grade = Grade(1.0, verdict=Verdict(failure_class, "told"))
    result = await fakes([say("done")], hooks=Recording(grade=grade).hooks()).paddock.run(TASK)
    assert (result.failure_class, result.reward) == (failure_class, reward)
    assert result.stages.grade.reward == 1.0
    assert result.ending.stage is Stage.GRADE


def test_a_verdict_of_an_unknown_class_is_refused():
    with pytest.raises(TaskError, match=r"verdict\.failure_class"):
        Verdict("cheated", "x")


async def test_a_grade_that_is_no_finite_number_is_a_failure_of_the_grader(fakes):
    result = await fakes([say("x")], hooks=Recording(grade=Grade(float("nan"))).hooks()).paddock.run(TASK)
    assert (result.ending.code, result.reward) == ("grader_failed", None)


async def test_a_grader_given_to_run_takes_the_place_of_the_hooks(fakes):
    async def other(view):
        return 0.25

    recording = Recording(grade=1.0)
    result = await fakes([say("x")], hooks=recording.hooks()).paddock.run(TASK, other)
    assert (result.reward, "grade" in recording.seen) == (0.25, False)
    async with fakes([say("x")]).paddock.rollout(TASK) as r:
        await r.run()
        with pytest.raises(RolloutStateError, match="no grader"):
            await r.grade()


async def test_a_fresh_sandbox_for_grading_holds_files_and_artifacts_and_the_agents_is_gone_by_then(fakes):
    places = []

    async def grade(view):
        places.append((view.sandbox, parts.provider.live[:], r.sandbox))
        await view.sandbox.write("hidden_test.py", b"SECRET")
        return Grade(1.0)

    script = [call("write", path="out", content="made"), call("write", path="junk", content="x"), say("done")]
    parts = fakes(script, hooks=Hooks(grade=grade, grade_in=GradePlace.FRESH))
    async with parts.paddock.rollout(TASK, rollout_id="r1") as r:
        await r.run()
        assert await r.grade() == 1.0
    agents, graders = parts.provider.created
    ((place, live, seen),) = places
    assert (place, live, seen) == (graders, [graders], graders)
    assert graders.files == {
        "/workspace/a": b"1", "/workspace/out": b"made", "/workspace/hidden_test.py": b"SECRET",
    }  # fmt: skip
    assert b"SECRET" not in agents.files.values()
    assert (agents.spec.owner, graders.spec.owner) == (graders.spec.owner, agents.spec.owner)
    assert graders.spec.owner.endswith("/r1")
    assert graders.spec.ttl_s > TASK.limits.total_s
    parts.assert_nothing_left()


async def test_an_artifact_that_was_cut_does_not_stand_in_for_the_whole_in_the_graders_sandbox(fakes):
    async def grade(view):
        return float(not await has(view.sandbox, "out") and view.artifacts.cut == ("out",))

    task = dataclasses.replace(TASK, limits=TaskLimits(artifact_bytes=3))
    parts = fakes(
        [call("write", path="out", content="12345"), say("x")],
        hooks=Hooks(grade=grade, grade_in=GradePlace.FRESH),
    )
    result = await parts.paddock.run(task)
    assert (result.reward, result.artifacts) == (1.0, {"out": b"123"})


async def has(sandbox, path) -> bool:
    return path in [entry.name for entry in await sandbox.list(".")]


async def test_a_graders_sandbox_that_cannot_be_made_is_infrastructure_without_a_reward(fakes):
    class SecondFails(FakeProvider):
        async def create(self, spec):
            if self.created:
                raise SandboxStartFailed("full")
            return await super().create(spec)

    parts = fakes(
        [say("x")],
        provider=SecondFails(),
        hooks=Recording(grade=1.0).hooks(grade_in=GradePlace.FRESH, grade_spec=SandboxSpec(env={"A": "1"})),
    )
    async with parts.paddock.rollout(TASK) as r:
        await r.run()
        assert await r.grade() is None
        with pytest.raises(RolloutStateError, match="no live sandbox"):
            _ = r.sandbox
    assert (r.result.ending.code, r.result.ending.stage) == ("sandbox_failed", Stage.GRADE)
    parts.assert_nothing_left()


def test_a_spec_for_a_fresh_sandbox_that_is_not_asked_for_is_refused():
    with pytest.raises(TaskError, match="grade_spec"):
        Hooks(grade_spec=SandboxSpec())


async def test_artifacts_of_a_failed_rollout_are_kept_and_do_not_change_its_class(fakes):
    script = [call("write", path="out", content="why"), {"status": 500, "error": {"code": "x"}}]
    result = await fakes(script).paddock.run(TASK)
    assert (result.ending.code, result.artifacts) == ("gateway_error", {"out": b"why"})

    def dying(sandbox, invocation):
        sandbox.terminated = True
        raise SandboxGone("gone")

    provider = FakeProvider(dying)
    dead = await fakes([call("shell", command="x")], provider=provider).paddock.run(TASK)
    assert (dead.ending.code, dead.artifacts) == ("sandbox_failed", {})


async def test_hooks_of_one_rollout_take_the_place_of_the_paddocks(fakes):
    ours, other = Recording(grade=1.0), Recording(grade=0.0)
    parts = fakes([say("x")], hooks=ours.hooks(), provider=FakeProvider([completed()] * 9))
    assert (await parts.paddock.run(TASK, hooks=other.hooks())).reward == 0.0
    assert (await parts.paddock.run(TASK)).reward == 1.0
    assert (ours.seen, other.seen) == (other.seen, ours.seen)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Prepared(notes=["x"]),
        lambda: Prepared(notes={"x": object()}),
        lambda: Prepared(notes={1: "x"}),
        lambda: Opening(messages=["be quick"]),
        lambda: Opening(messages=[ChatMessage("user", "x")]),
        lambda: Opening(notes={"x": None}),
        lambda: Inspection(verdict="cheating"),
        lambda: Inspection(artifacts={"out": "text"}),
        lambda: Inspection(artifacts={"../out": b"1"}),
        lambda: Inspection(artifacts={"": b"1"}),
        lambda: Grade(1.0, parts={"x": "1"}),
        lambda: Grade(1.0, verdict=FailureClass.COMPLETED),
    ],
)
def test_a_result_that_is_not_of_its_type_is_refused_where_it_is_made(make):
    with pytest.raises(TaskError, match="give"):
        make()


async def test_a_hooks_wrong_result_is_infrastructure_of_its_own_stage_and_not_of_a_later_one(fakes):
    async def after_agent(view):
        return Inspection(artifacts={"out": "text"})

    async def grade(view):
        raise AssertionError("never asked")

    hooks = Hooks(after_agent=after_agent, grade=grade, grade_in=GradePlace.FRESH)
    parts = fakes([say("x")], hooks=hooks)
    result = await parts.paddock.run(TASK)
    assert (result.failure_class, result.ending.stage) == (FailureClass.INFRASTRUCTURE, Stage.AFTER_AGENT)
    assert "artifacts['out']" in result.ending.detail


@pytest.mark.parametrize("place", list(GradePlace))
async def test_after_the_block_nothing_can_be_graded_or_run_and_no_sandbox_is_made(fakes, place):
    async def grade(view):
        return 1.0

    parts = fakes([say("x")], hooks=Hooks(grade=grade, grade_in=place))
    async with parts.paddock.rollout(TASK) as r:
        await r.run()
    for late in (r.grade, r.run):
        with pytest.raises(RolloutStateError, match="inside"):
            await late()
    assert len(parts.provider.created) == 1
    parts.assert_nothing_left()


async def test_a_lease_that_is_being_ended_makes_no_further_sandbox(fakes):
    parts = fakes([say("x")])
    async with parts.paddock.rollout(TASK) as r:
        await r.run()
    with pytest.raises(RolloutStateError, match="has ended"):
        await r._lease.create_sandbox(SandboxSpec())
    parts.assert_nothing_left()


async def test_graded_in_quiet_nothing_that_the_agent_left_running_is_beside_the_grader(bubblewrap):
    left = "(setsid sh -c 'while :; do date >>beat; sleep 0.02; done' &) >/dev/null 2>&1"
    seen = {}

    async def grade(view):
        told = await view.sandbox.run("cat beat | wc -l; sleep 0.2; cat beat | wc -l; cat kept")
        before, after, kept = told.stdout.split()
        seen[place] = before == after
        return float(kept == b"1")

    for place in (GradePlace.SAME, GradePlace.QUIET):
        gateway = ScriptedGateway(
            [call("shell", command=left), call("write", path="kept", content="1"), say("x")]
        )
        async with gateway.client() as http:
            paddock = WhiteboxPaddock(bubblewrap, gateway, http, hooks=Hooks(grade=grade, grade_in=place))
            result = await paddock.run(Task("t", prompt="p"))
        assert (result.failure_class, result.reward) == (FailureClass.COMPLETED, 1.0)
    assert seen == {GradePlace.SAME: False, GradePlace.QUIET: True}


async def test_quiet_is_refused_before_anything_is_made_where_the_provider_cannot(fakes, monkeypatch):
    parts = fakes([say("x")], hooks=Hooks(grade_in=GradePlace.QUIET))
    monkeypatch.setattr(FakeProvider, "features", frozenset())
    with pytest.raises(TaskError, match=r"FakeProvider cannot .*FRESH"):
        parts.paddock.rollout(TASK)
    assert parts.provider.created == []
