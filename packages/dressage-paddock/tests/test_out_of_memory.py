"""A sandbox that died of what its agent did with its memory is the policy's failure, and graded as one."""

from __future__ import annotations

import pytest
from dressage_paddock import (
    BlackboxConfig,
    BlackboxPaddock,
    FailureClass,
    GradePlace,
    Hooks,
    Stage,
    Task,
    WhiteboxPaddock,
    classify,
    run_with_retries,
)
from dressage_paddock.fake import ScriptedGateway, call, say
from dressage_sandbox import Limits, OutOfMemory, SandboxGone, SandboxSpec
from dressage_sandbox.fake import FakeProvider, completed

MIB = 1 << 20
TASK = Task("t", prompt="p", files={"a": b"1"}, artifacts=("out",))
CODE = "out_of_memory"


@pytest.mark.parametrize("stage", list(Stage))
def test_p8_it_is_the_policys_only_where_the_agents_things_fill_the_sandbox(stage):
    ending = classify(OutOfMemory("x"), stage)
    own = stage in (Stage.AGENT, Stage.AFTER_AGENT, Stage.END)
    assert ending.failure_class is (FailureClass.POLICY_FAILURE if own else FailureClass.INFRASTRUCTURE)
    assert (ending.code == CODE, ending.retryable) == (own, not own)


def dies_at(word: str):
    """A provider whose first sandbox dies at a command with this word; later ones answer it."""
    dead = []

    def script(sandbox, invocation):
        if (word in str(invocation.command) and not dead) or dead == [sandbox]:
            dead[:] = [sandbox]
            raise OutOfMemory("the sandbox ran out of memory")
        return completed("fine")

    return FakeProvider(script)


async def lost(view) -> float:
    """A grader that needs a sandbox."""
    result = await view.sandbox.run("check")
    return 0.25 if "/workspace/out" not in view.sandbox.files and result.stdout == b"fine" else 1.0


@pytest.mark.parametrize("place", list(GradePlace))
async def test_p8_a_rollout_whose_agent_killed_its_sandbox_so_is_graded_and_not_tried_again(fakes, place):
    parts = fakes([call("shell", command="hoard"), say("x")], provider=dies_at("hoard"))
    hooks = Hooks(grade=lost, grade_in=place)
    result = await run_with_retries(parts.paddock, TASK, hooks=hooks)
    assert (result.failure_class, result.ending.code, result.reward) == (
        FailureClass.POLICY_FAILURE,
        CODE,
        0.25,
    )
    assert (result.attempts, len(parts.provider.created)) == (1, 2)
    parts.assert_nothing_left()


async def test_one_that_dies_of_what_was_left_under_the_grader_is_graded_without_it(fakes):
    parts = fakes([call("write", path="out", content="x"), say("x")], provider=dies_at("check"))
    result = await parts.paddock.run(TASK, lost)
    assert (result.failure_class, result.ending.code) == (FailureClass.POLICY_FAILURE, CODE)
    assert result.reward == 1.0  # the artifacts were read before, and are there
    parts.assert_nothing_left()


async def test_a_grader_that_uses_up_a_sandbox_of_its_own_is_infrastructure(fakes):
    async def hungry(view) -> float:
        raise OutOfMemory("the sandbox ran out of memory")

    parts = fakes([say("x")])
    result = await parts.paddock.run(TASK, hooks=Hooks(grade=hungry, grade_in=GradePlace.FRESH))
    assert (result.failure_class, result.reward) == (FailureClass.INFRASTRUCTURE, None)
    parts.assert_nothing_left()


@pytest.mark.parametrize(("error", "policy"), [(OutOfMemory("x"), True), (SandboxGone("x"), False)])
async def test_a_program_that_kills_its_sandbox_so_is_told_from_a_sandbox_that_was_lost(error, policy):
    gateway = ScriptedGateway([say("x")])

    def script(sandbox, invocation):
        raise error

    provider = FakeProvider(script)
    paddock = BlackboxPaddock(provider, gateway, blackbox=BlackboxConfig(args=("agent",)))
    async with paddock.rollout(TASK) as r:

        async def gone(path):
            raise error

        r.sandbox.list = gone
        ending = await r.run()
    assert ending.failure_class is (FailureClass.POLICY_FAILURE if policy else FailureClass.INFRASTRUCTURE)
    assert provider.live == []


HOARD = """python3 -c '
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
while True:
    place = libc.shmat(libc.shmget(0, 1 << 18, 0o1600), 0, 0)
    ctypes.memset(place, 1, 1 << 18)
    libc.shmdt(ctypes.c_void_p(place))
'"""


async def test_a_real_agent_that_fills_all_it_can_gets_its_reward_and_no_second_attempt(bubblewrap):
    if not (await bubblewrap.probe()).memory.startswith("cgroup"):
        pytest.skip("no control group holds memory here")
    spec = SandboxSpec(limits=Limits(memory_bytes=64 * MIB, disk_bytes=32 * MIB, timeout_s=10.0))
    fill = "for f in a /tmp/b /dev/shm/c; do head -c 100M /dev/zero >$f; done"
    script = [call("shell", command=line) for line in (fill, HOARD, HOARD, fill, "true")]
    gateway = ScriptedGateway([*script, say("done")])

    async def grade(view) -> float:
        return float((await view.sandbox.run(["cat", "a"])).stdout == b"1")

    task = Task("t", prompt="p", files={"a": b"1"}, sandbox=spec)
    async with gateway.client() as http:
        result = await run_with_retries(WhiteboxPaddock(bubblewrap, gateway, http), task, grade)
    assert result.attempts == 1
    assert result.failure_class in (FailureClass.COMPLETED, FailureClass.POLICY_FAILURE)
    assert result.reward is not None
    assert bubblewrap.live() == []
