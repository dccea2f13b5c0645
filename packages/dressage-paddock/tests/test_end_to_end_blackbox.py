"""A closed program with the official openai client inside a real sandbox, recorded by a real proxy."""

from __future__ import annotations

from pathlib import Path

import pytest
from dressage_paddock import (
    BlackboxConfig,
    BlackboxPaddock,
    FailureClass,
    GraderOnly,
    GradeView,
    Task,
    TaskLimits,
)
from dressage_sandbox import Limits, SandboxSpec

AGENT = Path(__file__).with_name("openai_agent.py").read_bytes()
CALL = (
    '<tool_call>\n{"name": "shell", "arguments": {"command": "cat number.txt > copy.txt; cat copy.txt"}}'
    "\n</tool_call>"
)


@pytest.fixture
def spec(openai_mounts) -> SandboxSpec:
    return SandboxSpec(
        mounts=openai_mounts, env={"PYTHONPATH": "/opt/packages"}, limits=Limits(memory_bytes=1 << 30)
    )


async def copied(view: GradeView) -> float:
    assert view.model_text is None
    return float(await view.sandbox.read("copy.txt") == view.task.grader.values["answer"])


async def test_a_program_with_the_openai_client_inside_is_recorded_graded_and_audited(
    recorder, bubblewrap, spec, inside_python, audited
):
    recorder.script([CALL, "the number is 1234"])
    task = Task(
        "b",
        prompt="Copy the number and tell it.",
        files={"number.txt": b"1234\n", "agent.py": AGENT},
        grader=GraderOnly({"answer": b"1234\n"}),
        sandbox=spec,
        limits=TaskLimits(timeout_s=60),
    )
    config = BlackboxConfig(args=(inside_python[1], "agent.py"))
    paddock = BlackboxPaddock(bubblewrap, recorder.client, blackbox=config)
    result = await paddock.run(task, copied, group_id="g")
    assert (result.failure_class, result.reward) == (FailureClass.COMPLETED, 1.0), result.ending
    assert result.agent_output == "the number is 1234\n"
    assert result.finalize is not None
    assert (result.finalize.segments, result.finalize.lost_tokens) == (1, {})
    report = audited(result.session_id)
    assert report.ok, report.findings
    assert report.proven_tokens == result.finalize.trained_tokens > 0
    assert bubblewrap.live() == []
