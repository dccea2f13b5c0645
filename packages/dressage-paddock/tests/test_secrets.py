"""What is the runner's or the grader's is nowhere in a real sandbox while the agent is in it."""

from __future__ import annotations

import pytest
from dressage_paddock import (
    BlackboxConfig,
    BlackboxPaddock,
    FailureClass,
    Grade,
    GradePlace,
    GraderOnly,
    Hooks,
    RunnerOnly,
    Task,
    TaskLimits,
    WhiteboxPaddock,
)
from dressage_paddock.fake import ScriptedGateway, call, say
from dressage_paddock.task import PublicMetadata
from dressage_sandbox import SandboxSpec

PUBLIC = ["PUBLIC-FILE", "PUBLIC-ENV", "PUBLIC-METADATA"]
SECRET = ["RUNNER-SECRET", "GRADER-SECRET"]

TASK = Task(
    "t",
    prompt="p",
    files={"notes.txt": b"PUBLIC-FILE\n"},
    metadata=PublicMetadata({"hint": "PUBLIC-METADATA"}),
    runner=RunnerOnly({"weight": "RUNNER-SECRET"}),
    grader=GraderOnly({"label": "GRADER-SECRET", "tests": {"hidden.py": "GRADER-SECRET"}}),
    sandbox=SandboxSpec(env={"TOKEN": "PUBLIC-ENV"}),
    limits=TaskLimits(tool_output_bytes=1 << 20),
)

# The pattern is spelt so that the search does not find itself.
SEARCH = """
for p in /proc/[0-9]*; do
  for f in cmdline environ comm; do tr '\\0' '\\n' <$p/$f; done
done 2>/dev/null >/tmp/.found
env >>/tmp/.found
find / -xdev -type f -size -1M -not -path '/usr/*' -not -path '/tmp/.found' \
  -exec cat {} + 2>/dev/null >>/tmp/.found
find /workspace /tmp /run /dev/shm -type f -not -path '/tmp/.found' -exec cat {} + 2>/dev/null >>/tmp/.found
grep -aoE '(PUBLI[C]|RUNNE[R]|GRADE[R])-[A-Z]+' /tmp/.found | sort -u
"""


async def prepare(view):
    await view.sandbox.write("from_metadata", f"{view.task.metadata['hint']}\n".encode())


async def grade(view):
    """The grader brings its own part to where it works."""
    await view.sandbox.write("hidden.py", view.task.grader.values["tests"]["hidden.py"].encode())
    return Grade(float(b"GRADER-SECRET" in await view.sandbox.read("hidden.py")))


@pytest.mark.parametrize("place", list(GradePlace))
async def test_p7_a_tool_that_searches_the_whole_sandbox_finds_the_public_part_alone(bubblewrap, place):
    gateway = ScriptedGateway([call("shell", command=SEARCH), say("done")])
    hooks = Hooks(prepare=prepare, grade=grade, grade_in=place)
    async with gateway.client() as http:
        paddock = WhiteboxPaddock(bubblewrap, gateway, http, hooks=hooks)
        result = await paddock.run(TASK)
    assert (result.failure_class, result.reward) == (FailureClass.COMPLETED, 1.0), result.ending
    found = result.transcript[2].content.splitlines()
    assert found == sorted(PUBLIC), "the search is blind, or something of another kind is inside"
    (session,) = gateway.sessions.values()
    assert not any(secret in repr((session.opened, session.requests)) for secret in SECRET)


async def test_p7_a_program_that_searches_the_whole_sandbox_finds_the_public_part_alone(bubblewrap):
    gateway = ScriptedGateway([say("x")])
    hooks = Hooks(prepare=prepare, grade=grade, grade_in=GradePlace.FRESH)
    config = BlackboxConfig(args=("sh", "-c", SEARCH))
    result = await BlackboxPaddock(bubblewrap, gateway, blackbox=config, hooks=hooks).run(TASK)
    assert (result.failure_class, result.reward) == (FailureClass.COMPLETED, 1.0), result.ending
    assert result.agent_output.split() == sorted(PUBLIC)


async def test_p7_what_an_agent_leaves_running_never_sees_what_a_grader_brings_to_its_fresh_place(bubblewrap):
    watcher = (
        "setsid sh -c 'while :; do cat hidden.py >>stolen 2>/dev/null; sleep 0.01; done' >/dev/null 2>&1 &"
        " echo started"
    )
    gateway = ScriptedGateway([call("shell", command=watcher), say("done")])
    looked = []

    async def look(view):
        looked.append(view.sandbox.id)
        await grade(view)
        return Grade(float([e.name for e in await view.sandbox.list(".")] == ["hidden.py", "notes.txt"]))

    async with gateway.client() as http:
        paddock = WhiteboxPaddock(
            bubblewrap, gateway, http, hooks=Hooks(grade=look, grade_in=GradePlace.FRESH)
        )
        async with paddock.rollout(TASK) as r:
            await r.run()
            agents = r.sandbox.id
            assert await r.grade() == 1.0
    assert looked != [agents]
    assert bubblewrap.live() == []
