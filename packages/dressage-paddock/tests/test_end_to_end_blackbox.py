"""A closed program with the official openai client inside a real sandbox, recorded by a real proxy."""

from __future__ import annotations

import asyncio
import json
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


PROBE = """
import json, os, urllib.error, urllib.request
base = os.environ["OPENAI_BASE_URL"]
root = base.split("/s/")[0]
def status(url, method="GET"):
    request = urllib.request.Request(url, method=method, data=b"{}" if method == "POST" else None)
    try:
        return urllib.request.urlopen(request, timeout=5).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError as error:
        return type(error).__name__
secrets = [name for name in os.environ if "KEY" in name and os.environ[name] != "not-a-key"]
answers = [status(base + "/models"), status(root + "/sessions", "POST"), status(root + "/rollout")]
print(json.dumps([*answers, status("%s"), secrets]))
"""


async def test_p7_the_program_reaches_its_own_session_and_neither_control_plane_nor_host(
    recorder, bubblewrap, inside_python
):
    control = str(recorder.client._http.base_url) + "/health"
    task = Task("b", prompt="probe", files={"probe.py": (PROBE % control).encode()})
    config = BlackboxConfig(args=(inside_python[1], "probe.py"))
    result = await BlackboxPaddock(bubblewrap, recorder.client, blackbox=config).run(task)
    assert result.failure_class is FailureClass.COMPLETED, result.ending
    models, sessions, rollout, host, secrets = json.loads(result.agent_output)
    assert models == 200
    assert {sessions, rollout} <= {404, 405}
    assert host == "URLError"
    assert secrets == []


async def test_p7_a_program_that_is_cancelled_is_gone_with_all_it_started(recorder, bubblewrap):
    started = asyncio.Event()
    paddock = BlackboxPaddock(
        bubblewrap,
        recorder.client,
        blackbox=BlackboxConfig(args=("sh", "-c", "setsid sleep 300 & sleep 300")),
        on_event=lambda event: started.set() if event.name == "ready" else None,
    )
    task = asyncio.create_task(paddock.run(Task("b", prompt="wait")))
    await asyncio.wait_for(started.wait(), 10)
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (bubblewrap.live(), paddock.live_leases) == ([], 0)
