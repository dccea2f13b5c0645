"""Public failure cases of this component, and those of others at this level."""

from __future__ import annotations

import asyncio

import pytest
from dressage_paddock import (
    FailureClass,
    GradePlace,
    GradeView,
    Hooks,
    InfrastructureError,
    PaddockConfig,
    Task,
    TaskLimits,
    TextCallProtocol,
    WhiteboxPaddock,
    run_with_retries,
)
from dressage_paddock.fake import ScriptedGateway, call, say
from dressage_paddock.lease import TERMINATE_ATTEMPTS
from dressage_sandbox import InvalidSpec, SandboxGone, SandboxSpec, SandboxStartFailed
from dressage_sandbox.fake import FakeProvider, FakeSandbox, completed

TASK = Task("t", prompt="p")


class HangingProvider(FakeProvider):
    """Its sandboxes' ``terminate`` hangs until ``gate`` opens, or fails ``failures`` times."""

    def __init__(self, *, failures: int = 0, hang: bool = False) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        if not hang:
            self.gate.set()
        self.failures = failures
        self.ends = 0

    async def create(self, spec: SandboxSpec) -> FakeSandbox:
        sandbox = await super().create(spec)
        end = sandbox.terminate

        async def terminate() -> None:
            self.ends += 1
            await self.gate.wait()
            if self.failures > 0:
                self.failures -= 1
                raise SandboxGone("the host did not answer")
            await end()

        sandbox.terminate = terminate  # type: ignore[method-assign]
        return sandbox


class LateProvider(FakeProvider):
    """Made the sandbox before the caller heard of it: cancelling ``create`` comes too late."""

    def __init__(self) -> None:
        super().__init__()
        self.making = asyncio.Event()
        self.answer = asyncio.Event()

    async def create(self, spec: SandboxSpec) -> FakeSandbox:
        self.making.set()
        while not self.answer.is_set():
            try:
                await self.answer.wait()
            except asyncio.CancelledError:
                continue
        return await super().create(spec)


async def test_c56_a_sandbox_that_comes_after_its_rollout_was_cancelled_is_ended(fakes):
    provider = LateProvider()
    parts = fakes([say("done")], provider=provider)
    task = asyncio.create_task(parts.paddock.run(TASK))
    await provider.making.wait()
    task.cancel()
    await asyncio.sleep(0.01)
    assert parts.paddock.live_leases == 1
    provider.answer.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [s.terminated for s in provider.created] == [True]
    parts.assert_nothing_left()


async def test_c56_a_create_that_outlasts_the_clean_up_is_ended_behind_and_counted_until_then(fakes):
    provider = LateProvider()
    parts = fakes([say("done")], provider=provider, config=PaddockConfig(cleanup_s=0.05))
    task = asyncio.create_task(parts.paddock.run(TASK))
    await provider.making.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert parts.paddock.live_leases == 1
    with pytest.raises(InfrastructureError, match="1 leases"):
        await parts.paddock.aclose()
    provider.answer.set()
    await parts.paddock.aclose()
    parts.assert_nothing_left()


async def test_c56_every_sandbox_carries_its_owner_and_an_expiry_beyond_all_that_it_may_do(fakes):
    provider = FakeProvider(errors=[SandboxStartFailed("504, although the box exists")])
    parts = fakes([say("done")], provider=provider, config=PaddockConfig(owner="worker-a"))
    limits = TaskLimits(timeout_s=9000, grade_timeout_s=500)
    first = await parts.paddock.run(Task("t", prompt="p", limits=limits), rollout_id="r1")
    assert first.ending.code == "sandbox_failed"
    await parts.paddock.run(Task("t", prompt="p", limits=limits), rollout_id="r2")
    spec = provider.created[0].spec
    assert spec.owner == "worker-a/r2"
    assert spec.ttl_s > limits.total_s > 9500
    parts.assert_nothing_left()


async def test_c56_a_terminate_that_hangs_holds_no_rollout_up_and_ends_behind(fakes):
    provider = HangingProvider(hang=True)
    events = []
    parts = fakes(
        [say("done")], provider=provider, config=PaddockConfig(cleanup_s=0.05), on_event=events.append
    )
    result = await asyncio.wait_for(parts.paddock.run(TASK), 5)
    assert result.failure_class is FailureClass.COMPLETED
    assert result.finalize is not None
    assert [e.name for e in events][-2:] == ["cleanup_failed", "ended"]
    assert parts.paddock.live_leases == 1
    provider.gate.set()
    await parts.paddock.aclose()
    parts.assert_nothing_left()


async def test_c56_one_transient_error_of_terminate_does_not_leak_the_slot(fakes):
    provider = HangingProvider(failures=2)
    parts = fakes([say("done")], provider=provider)
    assert (await parts.paddock.run(TASK)).failure_class is FailureClass.COMPLETED
    assert provider.ends == 3
    parts.assert_nothing_left()


async def test_c56_ending_one_paddocks_rollouts_leaves_a_peers_alone():
    provider = FakeProvider()
    gateway = ScriptedGateway([call("shell", command="x"), say("done")])
    async with gateway.client() as http:
        ours, peer = (
            WhiteboxPaddock(provider, gateway, http, config=PaddockConfig(owner=name)) for name in ("a", "b")
        )
        async with peer.rollout(TASK) as other:
            for _ in range(3):
                await ours.run(TASK)
            await ours.aclose()
            assert other.sandbox.id in [s.id for s in provider.live]
            assert (await other.run()).failure_class is FailureClass.COMPLETED
    assert provider.live == []


def dying(sandbox: FakeSandbox, invocation: object):
    raise SandboxGone("the sandbox stopped answering")


async def slow_grader(view: GradeView) -> float:
    await asyncio.sleep(60)
    return 1.0


async def broken_grader(view: GradeView) -> float:
    raise KeyError("reward.txt")


async def good(view: GradeView) -> float:
    return 1.0


async def test_c44_a_dead_sandbox_and_a_grader_that_fails_are_never_a_reward_of_0(fakes):
    script = [call("shell", command="work"), say("done")]
    quick = Task("t", prompt="p", limits=TaskLimits(grade_timeout_s=0.05))
    alive = fakes(script)
    results = [await alive.paddock.run(TASK, good), await alive.paddock.run(TASK, good)]
    dead = fakes(script, provider=FakeProvider(dying))
    results.append(await dead.paddock.run(TASK, good))
    results.append(await alive.paddock.run(quick, slow_grader))
    results.append(await alive.paddock.run(TASK, broken_grader))
    assert [r.reward for r in results] == [1.0, 1.0, None, None, None]
    assert [r.failure_class for r in results[2:]] == [FailureClass.INFRASTRUCTURE] * 3
    assert [r.ending.code for r in results[2:]] == ["sandbox_failed", "grader_failed", "grader_failed"]
    told = [s.failure_class for s in (*alive.gateway.sessions.values(), *dead.gateway.sessions.values())]
    assert told.count("infrastructure") == 3
    assert "KeyError" in results[4].ending.detail
    for parts in (alive, dead):
        parts.assert_nothing_left()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "1.0"])
async def test_c44_a_reward_that_is_no_finite_number_is_a_failure_of_the_grader(fakes, value):
    async def grader(view: GradeView):
        return value

    result = await fakes([say("done")]).paddock.run(TASK, grader)
    assert (result.reward, result.failure_class) == (None, FailureClass.INFRASTRUCTURE)


async def test_c44_infrastructure_failures_are_tried_again_with_a_fresh_sandbox_and_counted(fakes):
    events = []
    provider = FakeProvider(errors=[SandboxStartFailed("first"), SandboxStartFailed("second")])
    parts = fakes([say("done")], provider=provider, on_event=events.append)
    result = await run_with_retries(parts.paddock, TASK, good, rollout_id="r", backoff_s=0.0)
    assert (result.reward, result.attempts, result.rollout_id) == (1.0, 3, "r.3")
    assert [r.rollout_id for r in result.earlier] == ["r", "r.2"]
    assert [r.failure_class for r in result.earlier] == [FailureClass.INFRASTRUCTURE] * 2
    assert [e.data["code"] for e in events if e.name == "retry"] == ["sandbox_failed"] * 2
    assert len(parts.gateway.sessions) == 3
    parts.assert_nothing_left()


async def test_c44_retries_end_at_their_limit_with_no_reward(fakes):
    parts = fakes([say("done")], provider=FakeProvider(errors=[SandboxStartFailed("x")] * 9))
    result = await run_with_retries(parts.paddock, TASK, good, attempts=2, backoff_s=0.0)
    assert (result.reward, result.attempts) == (None, 2)
    assert result.failure_class is FailureClass.INFRASTRUCTURE


async def test_what_no_second_attempt_can_mend_is_not_tried_again(fakes):
    parts = fakes([say("done")], provider=FakeProvider(errors=[InvalidSpec("limits.pids=1: at least 4")] * 3))
    result = await run_with_retries(parts.paddock, TASK, good, backoff_s=0.0)
    assert (result.attempts, result.ending.code) == (1, "sandbox_spec")


@pytest.mark.parametrize("script", [[say("x", finish_reason="length")], [say("wrong")]])
async def test_a_failure_of_the_policy_is_data_and_not_tried_again(fakes, script):
    async def none(view: GradeView) -> float:
        return 0.0

    result = await run_with_retries(fakes(script).paddock, TASK, none, backoff_s=0.0)
    assert (result.attempts, result.reward) == (1, 0.0)


async def test_c44_a_wall_clock_end_is_its_own_class_and_may_be_graded_on_what_is_left(fakes):
    async def stuck(sandbox: FakeSandbox, invocation: object):
        sandbox.files["/workspace/answer"] = b"42"
        await asyncio.sleep(60)
        return completed()

    async def left(view: GradeView) -> float:
        return float(await view.sandbox.read("answer") == b"42")

    parts = fakes([call("shell", command="x")], provider=FakeProvider(stuck))
    result = await parts.paddock.run(Task("t", prompt="p", limits=TaskLimits(timeout_s=0.5)), left)
    assert (result.failure_class, result.reward, result.turns) == (FailureClass.TIMEOUT, 1.0, 1)


async def test_c30_the_reward_text_is_the_models_own_words_not_the_tools(fakes):
    script = [call("shell", says="calling check", command="check"), say("I do not know")]
    parts = fakes(script, provider=FakeProvider([completed("expected: 42")]))
    seen = []

    async def exact(view: GradeView) -> float:
        seen.append(view)
        return float("42" in (view.model_text or ""))

    result = await parts.paddock.run(Task("t", prompt="not 42 yet"), exact)
    assert result.reward == 0.0
    assert result.model_text == "calling check\nI do not know"
    assert result.final_text == "I do not know"
    assert any("expected: 42" in m.content for m in seen[0].transcript)


async def test_c30_with_text_calls_the_output_that_comes_back_as_a_user_message_is_not_the_models(fakes):
    script = [say("<call>check</call>"), say("I do not know")]
    parts = fakes(script, provider=FakeProvider([completed("expected: 42")]), protocol=TextCallProtocol())
    result = await parts.paddock.run(TASK)
    assert [m.role for m in result.transcript] == ["user", "assistant", "user", "assistant"]
    assert "42" not in result.model_text


async def test_c56_a_rollout_of_the_same_id_may_begin_while_the_former_one_is_still_ending(fakes):
    provider = HangingProvider(hang=True)
    parts = fakes([say("done")], provider=provider, config=PaddockConfig(cleanup_s=0.05))
    first = await parts.paddock.run(TASK, rollout_id="same")
    second = await parts.paddock.run(TASK, good, rollout_id="same")
    assert (first.failure_class, second.reward) == (FailureClass.COMPLETED, 1.0)
    assert first.session_id != second.session_id
    assert len({s.id for s in provider.created}) == 2
    assert parts.paddock.live_leases == 2
    provider.gate.set()
    await parts.paddock.aclose()
    assert [s.terminated for s in provider.created] == [True, True]
    parts.assert_nothing_left()


async def test_c56_a_rollout_that_nobody_enters_holds_nothing(fakes):
    parts = fakes([say("done")])
    parts.paddock.rollout(TASK)
    assert (parts.provider.created, parts.gateway.sessions, parts.paddock.live_leases) == ([], {}, 0)


async def test_c56_both_sandboxes_of_a_rollout_end_though_the_first_end_of_one_failed(fakes):
    provider = HangingProvider(failures=TERMINATE_ATTEMPTS)
    events = []
    hooks = Hooks(grade=good, grade_in=GradePlace.FRESH)
    parts = fakes([say("done")], provider=provider, hooks=hooks, on_event=events.append)
    result = await parts.paddock.run(TASK)
    assert (result.reward, [e.name for e in events].count("cleanup_failed")) == (1.0, 1)
    assert [s.terminated for s in provider.created] == [True, True]
    parts.assert_nothing_left()
