"""Tasks: what may enter the sandbox, what never does, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest
from dressage_paddock import ChatMessage, GraderOnly, RunnerOnly, Task, TaskError, TaskLimits
from dressage_paddock.fake import say

SECRETS = Task(
    "t",
    prompt="p",
    files={"a.txt": b"public", "/opt/b": b"too"},
    runner=RunnerOnly({"weight": "RUNNER-SECRET"}),
    grader=GraderOnly({"label": "GRADER-SECRET"}),
)


async def test_nothing_of_the_runner_or_grader_part_reaches_the_sandbox_the_model_or_a_log(fakes):
    events = []
    parts = fakes([say("done")], on_event=events.append)
    result = await parts.paddock.run(SECRETS)
    box = parts.provider.created[0]
    (session,) = parts.gateway.sessions.values()
    assert box.files == {"/workspace/a.txt": b"public", "/opt/b": b"too"}
    everything = repr((box, box.spec, box.calls, session, events, result, SECRETS, SECRETS.public()))
    assert "SECRET" not in everything
    assert {f.name for f in dataclasses.fields(SECRETS.public())}.isdisjoint({"runner", "grader"})


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"instance_id": ""}, "instance_id"),
        ({"prompt": ""}, "prompt or messages"),
        ({"messages": (ChatMessage("user", "x"),)}, "prompt or messages"),
        ({"prompt": "", "system": "s", "messages": (ChatMessage("user", "x"),)}, "system"),
        ({"files": {"../x": b""}}, r"\.\./x"),
        ({"files": {"a\x00": b""}}, "NUL"),
        ({"files": {"a": "text"}}, "bytes"),
        ({"artifacts": ("a/../../b",)}, "artifacts"),
    ],
)
def test_a_task_that_cannot_run_is_refused_with_the_field(fields, told):
    with pytest.raises(TaskError, match=told):
        Task(**{"instance_id": "t", "prompt": "p", **fields})


LIMITS = [(f, v) for f in ("max_turns", "timeout_s", "grade_timeout_s") for v in (0, -1, float("nan"))]


@pytest.mark.parametrize(("field", "value"), [*LIMITS, ("max_tokens", 0)])
def test_limits_that_no_rollout_can_hold_are_refused_with_the_field(field, value):
    with pytest.raises(TaskError, match=f"limits.{field}"):
        TaskLimits(**{field: value})


def test_messages_are_public_as_given():
    messages = (ChatMessage("system", "s"), ChatMessage("user", "a"), ChatMessage("user", "b"))
    public = Task("t", messages=messages).public()
    assert public.messages == messages
    assert (public.system, public.prompt) == ("s", "a\n\nb")
