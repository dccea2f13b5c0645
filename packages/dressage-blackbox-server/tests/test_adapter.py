"""Declarative adapters: templates, files, large prompts, resume, output."""

from __future__ import annotations

import json

import pytest
from dressage_blackbox_server import (
    COMMAND,
    AgentAdapter,
    Dialect,
    ExecResult,
    ExecutorError,
    FileTemplate,
    Launch,
    LaunchError,
    OutputKind,
    OutputRule,
    PromptTooLargeError,
    RequestError,
    SessionConfig,
    TurnOutcome,
    shell_args,
)
from dressage_blackbox_server.adapter import PLACEHOLDERS, fill, fill_argv
from dressage_blackbox_server.output import read_answer
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

FULL = AgentAdapter(
    name="full",
    dialects=(Dialect.OPENAI_RESPONSES,),
    first=Launch(argv=("agent", "exec", "{args}", "{prompt}")),
    first_large=Launch(argv=("agent", "exec", "{args}", "-"), stdin="{prompt}"),
    resume=Launch(argv=("agent", "resume", "{thread_id}", "{prompt}")),
    resume_large=Launch(argv=("agent", "resume", "{thread_id}", "-"), stdin="{prompt}"),
    env={"AGENT_HOME": "{home}", "BASE": "{anthropic_url}"},
    files=(FileTemplate(path="{home}/config.json", content='{"url": "{openai_url}", "n": {}}'),),
    output=OutputRule(kind=OutputKind.JSON_LINES, answer_path="item.text", thread_path="thread_id"),
)
RESUMING = AgentAdapter(
    name="resuming",
    dialects=(Dialect.ANTHROPIC_MESSAGES,),
    first=Launch(argv=("agent", "--new", "{session_uuid}"), stdin="{prompt}"),
    resume=Launch(argv=("agent", "--resume", "{session_uuid}"), stdin="{prompt}"),
    files=(FileTemplate(path="{home}/settings.json", content="{}"),),
)
LINES = (
    b'{"thread_id": "th-7"}\nnoise\n{"item": {"text": "first"}}\n{"item": {"text": "last"}}\n{"item": 1}\n'
)


async def test_the_command_adapter_gives_url_prompt_and_session_by_environment_stdin_and_file(
    open_session, executor
):
    await open_session().turn("t1", "do {model} it")
    run = executor.runs[0]
    assert run.env["OPENAI_BASE_URL"] == "http://127.0.0.1:8800/s/abc/v1"
    assert run.env["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8800/s/abc"
    assert (run.env["DRESSAGE_MODEL"], run.env["DRESSAGE_SESSION"]) == ("policy", "u-1")
    assert run.stdin == b"do {model} it"
    assert executor.files == {run.env["DRESSAGE_PROMPT_FILE"]: b"do {model} it"}


async def test_files_are_written_once_and_the_next_turn_resumes_the_agents_own_thread(open_session, executor):
    executor.result = ExecResult(0, LINES, b"", False)
    session = open_session(FULL)
    turn = await session.turn("t1", "one")
    assert (turn.output, turn.thread_id) == ("last", "th-7")
    assert executor.files == {"/tmp/agent/config.json": b'{"url": "http://127.0.0.1:8800/s/abc/v1", "n": {}}'}
    executor.files.clear()
    await session.turn("t2", "two")
    assert [run.argv for run in executor.runs] == [
        ("agent", "exec", "agent", "--fast", "one"),
        ("agent", "resume", "th-7", "two"),
    ]
    assert executor.files == {}


async def test_without_a_thread_of_the_agents_own_the_next_turn_begins_anew(open_session, executor):
    session = open_session(FULL)
    await session.turn("t1", "one")
    await session.turn("t2", "two")
    assert executor.runs[1].argv[:2] == ("agent", "exec")


async def test_a_prompt_above_what_argv_takes_goes_by_standard_input(open_session, executor):
    prompt = "x" * (128 * 1024)
    await open_session(FULL).turn("t1", prompt)
    assert executor.runs[0].argv[-1] == "-"
    assert executor.runs[0].stdin == prompt.encode()


async def test_a_prompt_that_fits_no_way_is_refused_by_name(open_session):
    adapter = AgentAdapter(name="argv", dialects=(), first=Launch(argv=("a", "{prompt}")))
    with pytest.raises(PromptTooLargeError, match="131072 bytes"):
        open_session(adapter).submit("t1", "x" * (128 * 1024))
    with pytest.raises(RequestError, match="NUL"):
        open_session(adapter).submit("t1", "a\x00b")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"first": Launch(argv=("a", "{promt}"))}, r"first.argv\[1\] names \{promt\}"),
        ({"first": Launch(argv=())}, "first.argv is empty"),
        ({"first": Launch(argv=("a",))}, "never get its prompt"),
        ({"first": Launch(argv=("a", "--x={args}", "{prompt}"))}, "whole argv element"),
        ({"env": {"P": "{prompt}"}}, r"env\[P\] holds"),
    ],
)
def test_an_adapter_that_cannot_work_is_refused_with_the_field(fields, told):
    with pytest.raises(ValidationError, match=told):
        AgentAdapter(**{"name": "x", "dialects": (), "first": Launch(argv=("a", "{prompt}")), **fields})


@given(st.text(), st.text())
def test_a_value_with_braces_is_put_in_as_it_is(prompt, url):
    values = {**dict.fromkeys(PLACEHOLDERS, "?"), "prompt": prompt, "openai_url": url}
    assert fill("{prompt}|{openai_url}|{other}|{}", values) == f"{prompt}|{url}|{{other}}|{{}}"
    assert fill_argv(("a", "{args}", "{prompt}"), values, ("{prompt}", "b")) == ("a", "{prompt}", "b", prompt)


@pytest.mark.parametrize(
    "fields",
    [
        {"workdir": "relative"},
        {"home": "/a b"},
        {"openai_url": "ftp://x"},
        {"model": 'a"b'},
        {"agent": "../x"},
    ],
)
def test_a_configuration_that_would_break_a_template_is_refused(fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        SessionConfig(**{"agent": "command", "openai_url": "http://h/v1", **fields})


def test_the_shell_helper_keeps_the_code_of_the_part_that_failed():
    assert shell_args("exit 9 | tee log") == ("bash", "-o", "pipefail", "-c", "exit 9 | tee log")


def test_the_command_adapter_speaks_every_dialect():
    assert set(COMMAND.dialects) == set(Dialect)


async def test_what_never_ran_is_not_resumed_and_its_files_are_written_again(open_session, executor):
    session = open_session(RESUMING)
    for broken in (LaunchError("no program"), ExecResult(127, b"", b"not found", False)):
        executor.result, executor.files = broken, {}
        assert (await session.turn(f"t{len(session.turns)}", "go")).outcome is TurnOutcome.LAUNCH_FAILED
    executor.result, executor.files = ExecResult(1, b"", b"crashed", False), {}
    await session.turn("ran", "go")
    assert executor.runs[-1].argv == ("agent", "--new", "u-1")
    assert executor.files == {"/tmp/agent/settings.json": b"{}"}
    await session.turn("next", "go on")
    assert executor.runs[-1].argv == ("agent", "--resume", "u-1")


async def test_files_that_cannot_be_written_are_a_failed_launch(open_session, executor):
    async def full(path, data, *, mode=0o600):
        raise ExecutorError(f"{path}: no space")

    write, executor.write = executor.write, full
    session = open_session(RESUMING)
    turn = await session.turn("t1", "go")
    assert (turn.outcome, executor.runs) == (TurnOutcome.LAUNCH_FAILED, [])
    assert "no space" in turn.detail
    executor.write = write
    await session.turn("t2", "go")
    assert executor.runs[-1].argv == ("agent", "--new", "u-1")


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c"])
def test_an_answer_with_line_ends_that_json_keeps_as_they_are_is_read(end):
    line = json.dumps({"text": f"one{end}two"}, ensure_ascii=False)
    rule = OutputRule(kind=OutputKind.JSON_LINES, answer_path="text")
    assert read_answer(rule, f'{{"text": "earlier"}}\n{line}\r\n') == f"one{end}two"
