"""Tools: a wrong call is told to the model, what broke is raised, output is bounded."""

from __future__ import annotations

import json

import pytest
from dressage_paddock import ToolBounds, default_tools
from dressage_paddock.toolcalls import call_tool
from dressage_paddock.tools import render_run, tool_schema
from dressage_sandbox import SandboxGone, SandboxSpec
from dressage_sandbox.fake import FakeSandbox, completed
from hypothesis import given
from hypothesis import strategies as st

BOUNDS = ToolBounds(timeout_s=3.0, output_bytes=10)


def sandbox(script=lambda sandbox, invocation: completed("ok"), **files: bytes) -> FakeSandbox:
    return FakeSandbox(SandboxSpec(), script, "s", {f"/workspace/{k}": v for k, v in files.items()})


async def do(box: FakeSandbox, name: str, arguments: str) -> tuple[str, bool]:
    return await call_tool(default_tools(), box, name, arguments, BOUNDS)


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("zap", "{}", "the tools are shell, read, write"),
        ("shell", "{", "not JSON"),
        ("shell", "[" * 100_000, "not JSON"),
        ("shell", "[]", "JSON list"),
        ("shell", "", "'command' is missing"),
        ("shell", '{"command": 1}', "'command' is int: give a string"),
        ("shell", '{"command": "x", "cwd": "/"}', "unknown argument 'cwd'"),
        ("read", '{"path": "a", "offset": true}', "'offset' is bool: give a integer"),
        ("read", '{"path": "a", "offset": -1}', "negative"),
        ("write", '{"path": "\\ud800", "content": ""}', "lone surrogate"),
        ("shell", '{"command": "\\udc80"}', "lone surrogate"),
        ("read", '{"path": "none"}', "No such file"),
        ("write", '{"path": "d/", "content": ""}', "directory"),
    ],
)
async def test_a_wrong_call_is_told_to_the_model(name, arguments, told):
    text, mistake = await do(sandbox(), name, arguments)
    assert mistake
    assert text.startswith("error: ")
    assert told in text


async def test_a_dead_sandbox_is_raised_not_told():
    box = sandbox()
    await box.terminate()
    for name, arguments in (("shell", '{"command": "x"}'), ("read", '{"path": "a"}')):
        with pytest.raises(SandboxGone):
            await do(box, name, arguments)


async def test_files_are_read_and_written_within_bounds():
    box = sandbox(a=b"0123456789abc")
    assert await do(box, "read", '{"path": "a"}') == ("0123456789\n[cut: more follows at offset 10]", False)
    assert await do(box, "read", '{"path": "a", "offset": 10}') == ("abc", False)
    assert await do(box, "write", '{"path": "b", "content": "é"}') == ("wrote 2 bytes to b", False)
    assert box.files["/workspace/b"] == "é".encode()


async def test_the_shell_gets_the_bounds():
    box = sandbox()
    assert await do(box, "shell", '{"command": "x"}') == ("ok", False)
    assert (box.calls[0].command, box.calls[0].timeout_s) == ("x", 3.0)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (completed(), "[no output]"),
        (completed("a\n", stderr="b\n", exit_code=2), "a\n[stderr]\nb\n[exit code 2]"),
        (completed(b"\xff", exit_code=124, timed_out=True), "\ufffd\n[timed out: the command was ended]"),
    ],
)
def test_results_are_rendered_the_same_each_time(result, text):
    assert render_run(result) == text


def test_schemas_are_plain_function_tools():
    for tool in default_tools():
        schema = tool_schema(tool)
        assert schema["type"] == "function"
        assert set(schema["function"]["parameters"]["required"]) <= set(
            schema["function"]["parameters"]["properties"]
        )
        json.dumps(schema)


@given(st.sampled_from(["shell", "read", "write"]), st.text())
async def test_no_argument_text_breaks_the_loop(name, arguments):
    text, _ = await do(sandbox(), name, arguments)
    assert isinstance(text, str)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.sampled_from(["command", "path", "content", "offset"])


@given(st.sampled_from(["shell", "read", "write"]), st.dictionaries(KEYS, SCALARS | st.lists(SCALARS)))
async def test_no_json_breaks_the_loop(name, value):
    text, _ = await do(sandbox(), name, json.dumps(value))
    assert isinstance(text, str)
