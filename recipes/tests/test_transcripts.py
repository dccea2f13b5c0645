"""What is kept of rollouts for people: bounded, and JSON whatever was said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from dressage_paddock import CallRequest, ChatMessage, Ending, FailureClass, RolloutResult, Stage
from dressage_recipes.local.failures import FailureLog
from dressage_recipes.local.transcripts import MOST, Transcripts, plain
from hypothesis import given
from hypothesis import strategies as st

RESULT = RolloutResult(
    instance_id="row",
    group_id="g",
    rollout_id="r",
    session_id="s",
    failure_class=FailureClass.INFRASTRUCTURE,
    reward=None,
    turns=1,
    transcript=(
        ChatMessage("user", "q \ud800"),
        ChatMessage("assistant", "", "thinking", (CallRequest("1", "add", '{"a": 1}'),)),
    ),
    agent_output="x" * (MOST + 5),
    artifacts={},
    missing_artifacts=(),
    cut_artifacts=(),
    finalize=None,
    ending=Ending(FailureClass.INFRASTRUCTURE, "grader_failed", "KeyError: \ud800\nline two", Stage.GRADE),
)


def test_a_transcript_is_one_line_of_json_and_long_output_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "transcripts.jsonl"
    Transcripts(path).record(3, [RESULT, RESULT])
    first, _ = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert first["messages"][0]["content"] == "q ?"
    assert first["messages"][1] == {
        "role": "assistant",
        "content": "",
        "reasoning": "thinking",
        "calls": ['add({"a": 1})'],
    }
    assert first["agent_output"].endswith("x[cut: 5 more characters]")


@given(st.text(st.characters(), max_size=50), st.integers(1, 20))
def test_any_text_becomes_text_that_utf_8_holds(text: str, most: int) -> None:
    plain(text, most).encode()


def test_each_kind_of_failure_is_told_once_and_each_failure_is_written(tmp_path: Path) -> None:
    log = FailureLog(tmp_path / "failures.jsonl")
    assert log.record(1, []) == []
    assert not log.path.exists()
    (told,) = log.record(1, [RESULT, RESULT])
    assert told == "row: infrastructure at grade (grader_failed): KeyError: ? line two"
    other = replace(RESULT, ending=replace(RESULT.ending, code="tool_failed"))
    assert len(log.record(2, [RESULT, other])) == 1
    assert len(log.path.read_text(encoding="utf-8").splitlines()) == 4
    assert log.commonest([RESULT, RESULT, other]).startswith("2 of 3 failures are infrastructure at grade")
