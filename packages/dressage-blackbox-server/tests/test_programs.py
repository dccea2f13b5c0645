"""The adapters of real programs: what each is launched with, and how what it prints is read."""

from __future__ import annotations

import asyncio
import json
import tomllib

import pytest
from dressage_blackbox_server import CLAUDE_CODE, CODEX, OPENCLAW, OPENCODE, ExecResult
from dressage_blackbox_server.output import read_answer, read_thread_id
from dressage_blackbox_server.programs import PROGRAMS
from hypothesis import given
from hypothesis import strategies as st

URL = "http://127.0.0.1:8800/s/abc"
THREAD = "thread-7"
PRINTED = {
    "claude_code": [
        {"type": "system", "session_id": THREAD},
        {"type": "assistant", "message": {"content": [{"type": "text", "text": "on the way"}]}},
        {"type": "result", "result": "Done.", "session_id": THREAD},
    ],
    "codex": [
        {"type": "thread.started", "thread_id": THREAD},
        {"type": "item.completed", "item": {"type": "agent_message", "text": "on the way"}},
        {"type": "item.completed", "item": {"type": "agent_message", "text": "Done."}},
        {"type": "item.completed", "item": {"type": "reasoning", "text": "a thought that came last"}},
    ],
    "opencode": [
        {"type": "text", "sessionID": THREAD, "part": {"type": "text", "text": "Done."}},
        {"type": "reasoning", "sessionID": THREAD, "part": {"type": "reasoning", "text": "a thought"}},
    ],
}
OPENCLAW_PRINTED = json.dumps({"payloads": [], "meta": {"finalAssistantVisibleText": "Done."}}, indent=2)


def printed(name: str) -> bytes:
    if name == "openclaw":
        return OPENCLAW_PRINTED.encode()
    return "\n".join(json.dumps(line) for line in PRINTED[name]).encode()


@pytest.mark.parametrize("adapter", PROGRAMS, ids=lambda adapter: adapter.name)
async def test_a_program_is_started_then_resumed_and_its_answer_is_read(open_session, executor, adapter):
    executor.result = ExecResult(0, printed(adapter.name), b"", False)
    session = open_session(adapter)
    turns = [await session.turn("t1", "first"), await session.turn("t2", "second")]
    assert [turn.output for turn in turns] == ["Done.", "Done."]
    first, second = executor.runs
    named = "u-1" if adapter is OPENCLAW else THREAD
    assert named in second.argv
    assert first.argv[0] == second.argv[0] == adapter.version_argv[0]
    by_file = list(executor.files.values())[-2:]
    assert ([run.stdin for run in executor.runs] if first.stdin else by_file) == [b"first", b"second"]


@pytest.mark.parametrize("adapter", PROGRAMS, ids=lambda adapter: adapter.name)
async def test_after_a_turn_that_was_killed_a_program_starts_as_if_it_never_ran(
    open_session, executor, adapter
):
    executor.gate = asyncio.Event()
    session = open_session(adapter)
    session.submit("t1", "first")
    await executor.started.wait()
    await session.cancel("t1")
    executor.gate.set()
    await session.turn("t2", "second")
    first, second = (tuple(part for part in run.argv if "prompt-" not in part) for run in executor.runs)
    assert first == second


@pytest.mark.parametrize("adapter", PROGRAMS, ids=lambda adapter: adapter.name)
async def test_a_program_is_told_the_sessions_address_and_nothing_is_left_to_fill(
    open_session, executor, adapter
):
    executor.result = ExecResult(0, printed(adapter.name), b"", False)
    await open_session(adapter).turn("t1", "go")
    told = [*executor.runs[0].env.values(), *(data.decode() for data in executor.files.values())]
    assert any(URL in text for text in told)
    left = ("{openai_url}", "{anthropic_url}", "{model}", "{home}", "{context_tokens}", "{output_tokens}")
    assert not [text for text in told for name in left if name in text]


async def test_the_configurations_say_the_window_as_a_number(open_session, executor, config):
    config = config.model_copy(update={"context_tokens": 4321, "output_tokens": 321})
    for adapter in (CODEX, OPENCLAW, OPENCODE):
        await open_session(adapter, config=config).turn("t1", "go")
    codex = tomllib.loads(executor.files["/tmp/agent/codex/config.toml"].decode())
    assert codex["model_context_window"] == 4321
    openclaw = json.loads(executor.files["/tmp/agent/openclaw.json"])
    assert openclaw["models"]["providers"]["proxy"]["models"][0]["contextWindow"] == 4321
    opencode = json.loads(executor.runs[-1].env["OPENCODE_CONFIG_CONTENT"])
    limit = opencode["provider"]["proxy"]["models"]["policy"]["limit"]
    assert limit == {"context": 4321, "output": 321}


async def test_claude_code_is_told_its_window_model_and_limits(open_session, executor):
    await open_session(CLAUDE_CODE).turn("t1", "go")
    env = executor.runs[0].env
    assert env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "131072"
    assert env["ANTHROPIC_MODEL"] == env["CLAUDE_CODE_SUBAGENT_MODEL"] == "policy"
    assert env["ANTHROPIC_BASE_URL"] == URL


async def test_programs_that_give_a_long_reply_up_are_told_to_wait_for_an_hour(open_session, executor):
    for adapter in (CLAUDE_CODE, CODEX, OPENCLAW):
        await open_session(adapter).turn("t1", "go")
    assert executor.runs[0].env["API_TIMEOUT_MS"] == "3600000"
    codex = tomllib.loads(executor.files["/tmp/agent/codex/config.toml"].decode())
    assert codex["model_providers"]["proxy"]["stream_idle_timeout_ms"] == 3600000
    openclaw = json.loads(executor.files["/tmp/agent/openclaw.json"])
    assert openclaw["models"]["providers"]["proxy"]["timeoutSeconds"] == 3600


@pytest.mark.parametrize("adapter", PROGRAMS, ids=lambda adapter: adapter.name)
def test_a_program_is_pinned_and_says_how_to_install_it(adapter):
    name, _, version = adapter.npm.rpartition("@")
    assert name
    assert version[0].isdigit()
    assert adapter.npm in adapter.install


@given(st.text())
def test_whatever_a_program_prints_is_read_without_an_error(text):
    for adapter in PROGRAMS:
        assert read_answer(adapter.output, text) == ""
        assert read_thread_id(adapter.output, text) == ""
