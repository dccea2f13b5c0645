"""Cancelled at any step, at any two steps, a rollout leaves no sandbox, no session and no lease."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from dressage_paddock import (
    AfterView,
    BlackboxConfig,
    BlackboxPaddock,
    FailureClass,
    GradePlace,
    GradeView,
    Hooks,
    Inspection,
    Opening,
    Prepared,
    StageView,
    Task,
    WhiteboxPaddock,
)
from dressage_paddock.fake import ScriptedGateway, call, say
from dressage_sandbox import SandboxSpec
from dressage_sandbox.fake import FakeProvider, FakeSandbox, completed
from hypothesis import given, settings
from hypothesis import strategies as st

STEPS = 160
"""More event-loop steps than a whole rollout over these fakes takes."""


class SlowSandbox(FakeSandbox):
    """Every operation has awaits before and after what it does."""

    async def run(self, *args: Any, **kwargs: Any):
        await asyncio.sleep(0)
        result = await super().run(*args, **kwargs)
        await asyncio.sleep(0)
        return result

    async def write(self, *args: Any, **kwargs: Any) -> None:
        await asyncio.sleep(0)
        await super().write(*args, **kwargs)

    async def terminate(self) -> None:
        await asyncio.sleep(0)
        await super().terminate()
        await asyncio.sleep(0)


class SlowProvider(FakeProvider):
    """Takes steps to create. ``stubborn``: a cancelled create ends with a live sandbox all the same."""

    def __init__(self, *, stubborn: bool = False) -> None:
        super().__init__()
        self.stubborn = stubborn

    async def create(self, spec: SandboxSpec) -> FakeSandbox:
        cancelled = False
        for _ in range(4):
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if not self.stubborn:
                    raise
                cancelled = True
        assert not (cancelled and not self.stubborn)
        name = f"slow-{len(self.created)}"
        sandbox = SlowSandbox(spec, lambda s, i: completed("out"), name, on_end=self.live.remove)
        self.created.append(sandbox)
        self.live.append(sandbox)
        return sandbox


async def grade(view: GradeView) -> float:
    await asyncio.sleep(0)
    return float((await view.sandbox.run("check")).exit_code == 0)


async def cancelled_at(work: Coroutine[Any, Any, Any], *steps: int) -> bool:
    """Run ``work``, cancelling it after each of ``steps`` event-loop steps. Whether it was cancelled."""
    task = asyncio.create_task(work)
    for wait in steps:
        for _ in range(wait):
            if task.done():
                break
            await asyncio.sleep(0)
        task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


async def prepare(view: StageView) -> Prepared:
    await view.sandbox.run("install")
    return Prepared()


async def before(view: StageView) -> Opening:
    await view.sandbox.write("c", b"3")
    return Opening()


async def after(view: AfterView) -> Inspection:
    await view.sandbox.run("git diff")
    return Inspection()


HOOKS = Hooks(prepare, before, after)
FRESH = Hooks(prepare, before, after, grade_in=GradePlace.FRESH)


def a_paddock(kind: str, provider: FakeProvider, gateway: ScriptedGateway, http: Any) -> Any:
    hooks = {"plain": None, "hooks": HOOKS, "fresh": FRESH, "program": FRESH}[kind]
    if kind == "program":
        config = BlackboxConfig(args=("agent",))
        return BlackboxPaddock(provider, gateway, blackbox=config, hooks=hooks)
    return WhiteboxPaddock(provider, gateway, http, hooks=hooks)


async def rollout_cancelled_at(*steps: int, stubborn: bool = False, kind: str = "plain") -> bool:
    gateway = ScriptedGateway([call("shell", command="ls"), say("done")])
    provider = SlowProvider(stubborn=stubborn)
    task = Task("t", prompt="p", files={"a": b"1", "b": b"2"}, artifacts=("a",))
    async with gateway.client() as http, a_paddock(kind, provider, gateway, http) as paddock:
        cancelled = await cancelled_at(paddock.run(task, grade), *steps)
        assert paddock.live_leases == 0, steps
    assert provider.live == [], steps
    assert gateway.open_sessions == [], steps
    if cancelled:
        assert all(s.state == "deleted" or s.failure_class for s in gateway.sessions.values())
    return cancelled


@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("kind", ["plain", "hooks", "fresh", "program"])
async def test_p7_a_rollout_cancelled_at_any_step_leaves_nothing(kind, stubborn):
    outcomes = [await rollout_cancelled_at(step, stubborn=stubborn, kind=kind) for step in range(STEPS)]
    assert outcomes[0] is True
    assert outcomes[-1] is False, "STEPS is too small: the rollout did not end"
    assert sum(outcomes) > 30


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 90), min_size=2, max_size=4),
    st.booleans(),
    st.sampled_from(["plain", "hooks", "fresh", "program"]),
)
def test_p7_a_rollout_cancelled_again_while_it_cleans_up_leaves_nothing(steps, stubborn, kind):
    asyncio.run(rollout_cancelled_at(*steps, stubborn=stubborn, kind=kind))


async def test_an_error_of_the_block_leaves_nothing_and_is_not_swallowed(fakes):
    parts = fakes([say("done")])
    r = parts.paddock.rollout(Task("t", prompt="p"))

    async def block() -> None:
        async with r:
            await r.run()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await block()
    assert (r.result.failure_class, r.result.reward) == (FailureClass.ABORTED, None)
    assert [s.state for s in parts.gateway.sessions.values()] == ["deleted"]
    parts.assert_nothing_left()


@pytest.mark.parametrize("moment_ms", [1, 15, 30, 50, 80, 150])
async def test_p7_a_real_sandbox_is_gone_whenever_the_rollout_was_cancelled(bubblewrap, moment_ms):
    gateway = ScriptedGateway([call("shell", command="sleep 60 & sleep 60")])
    async with gateway.client() as http, WhiteboxPaddock(bubblewrap, gateway, http) as paddock:
        task = asyncio.create_task(paddock.run(Task("t", prompt="p", files={"a": b"1"})))
        await asyncio.sleep(moment_ms / 1000)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert paddock.live_leases == 0
    assert bubblewrap.live() == []
    assert gateway.open_sessions == []
