"""The same rollouts over providers of other kinds: what an agent sees and what is graded is the same."""

from __future__ import annotations

import pytest
from dressage_paddock import (
    BlackboxConfig,
    BlackboxPaddock,
    FailureClass,
    Grade,
    GradePlace,
    Hooks,
    Task,
    TaskLimits,
    WhiteboxPaddock,
)
from dressage_paddock.fake import ScriptedGateway, call, say
from dressage_sandbox import Feature
from dressage_sandbox.container import ContainerProvider
from dressage_sandbox.container.standin import EngineStandIn

TASK = Task(
    "t",
    prompt="p",
    files={"a.py": b"x = 1\n", "sub/b.py": b"y = 1\n"},
    artifacts=("a.py", "made"),
    limits=TaskLimits(tool_timeout_s=20.0),
)
SCRIPT = [
    call("search", pattern="= 1"),
    call("edit", path="a.py", old="x = 1", new="x = 2"),
    call("shell", command="python3 -c 'exec(open(\"a.py\").read()); print(x)'; echo err >&2; exit 3"),
    call("write", path="made/c", content="3"),
    call("read", path="a.py"),
    say("done"),
]


@pytest.fixture(params=["bubblewrap", "container"])
async def place(request, bubblewrap, tmp_path):
    """A provider, and a look at what is left of it."""
    if request.param == "bubblewrap":
        yield bubblewrap, bubblewrap.live
        return
    async with EngineStandIn(bubblewrap, tmp_path / "engine.sock") as engine:
        provider = ContainerProvider(engine.config(network="models-only"))
        yield provider, lambda: [*provider.live(), *engine.containers]
        await provider.close()


async def checked(view) -> Grade:
    result = await view.sandbox.run("grep -c 'x = 2' a.py && cat made/c")
    return Grade(float(result.stdout == b"1\n3"))


@pytest.mark.parametrize("grade_in", list(GradePlace))
async def test_a_whitebox_rollout_is_the_same_over_each_provider(place, grade_in):
    provider, left = place
    if grade_in is GradePlace.QUIET and Feature.QUIET not in provider.features:
        pytest.skip("this provider cannot end what was left running, and says so")
    gateway = ScriptedGateway(SCRIPT)
    hooks = Hooks(grade=checked, grade_in=grade_in)
    async with gateway.client() as http:
        result = await WhiteboxPaddock(provider, gateway, http, hooks=hooks).run(TASK)
    assert (result.failure_class, result.reward) == (FailureClass.COMPLETED, 1.0), result.ending
    assert [m.content for m in result.transcript if m.role == "tool"] == [
        "./a.py:1:x = 1\n./sub/b.py:1:y = 1",
        "replaced 1 place in a.py",
        "2\n[stderr]\nerr\n[exit code 3]",
        "wrote 1 bytes to made/c",
        "x = 2\n",
    ]
    assert result.artifacts == {"a.py": b"x = 2\n", "made/c": b"3"}
    assert (left(), gateway.open_sessions) == ([], [])


async def test_a_programs_exit_code_and_prompt_are_the_same_over_each_provider(place):
    provider, left = place
    gateway = ScriptedGateway([say("x")])
    config = BlackboxConfig(args=("sh", "-c", "wc -c; exit 0"))
    paddock = BlackboxPaddock(provider, gateway, blackbox=config)
    result = await paddock.run(Task("t", prompt="x" * 200_000))
    assert (result.failure_class, result.agent_output.strip()) == (FailureClass.COMPLETED, "200000")
    assert (left(), gateway.open_sessions) == ([], [])
