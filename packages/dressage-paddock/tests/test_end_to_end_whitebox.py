"""The whitebox loop through a real sandbox, a real proxy and a scripted engine."""

from __future__ import annotations

import httpx
from dressage_paddock import (
    FailureClass,
    GraderOnly,
    GradeView,
    Task,
    WhiteboxPaddock,
)


def tool_call(arguments: str, name: str = "shell") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


async def exact(view: GradeView) -> float:
    return float(view.final_text == view.task.grader.values["answer"])


async def test_a_native_tool_rollout_is_recorded_and_every_trained_token_is_proven(
    recorder, bubblewrap, audited
):
    recorder.script([tool_call('{"command": "cat number.txt"}'), "1234"])
    task = Task(
        "t", prompt="What number?", files={"number.txt": b"1234\n"}, grader=GraderOnly({"answer": "1234"})
    )
    async with httpx.AsyncClient() as http:
        paddock = WhiteboxPaddock(bubblewrap, recorder.client, http)
        result = await paddock.run(task, exact, group_id="g", sampling={"temperature": 1.0})
    assert (result.failure_class, result.reward, result.turns) == (FailureClass.COMPLETED, 1.0, 2)
    assert [m.role for m in result.transcript] == ["user", "assistant", "tool", "assistant"]
    assert result.transcript[2].content == "1234"
    assert result.finalize is not None
    assert result.finalize.segments == 1
    assert result.finalize.lost_tokens == {}
    _, segments = await recorder.client.segments(result.session_id)
    assert (segments[0].group_id, segments[0].instance_id) == ("g", "t")
    report = audited(result.session_id)
    assert report.ok, report.findings
    assert report.proven_tokens == result.finalize.trained_tokens > 0
    assert bubblewrap.live() == []
