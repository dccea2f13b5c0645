"""One turn through an adapter and an executor: write its files, start the program, read its end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from dressage_blackbox_server.adapter import ARGV_PROMPT_BYTES, AgentAdapter, Launch, fill, fill_argv
from dressage_blackbox_server.errors import ExecutorError, LaunchError, PromptTooLargeError, RequestError
from dressage_blackbox_server.executor import ExecResult, Executor
from dressage_blackbox_server.model import SessionConfig, TurnOutcome, TurnRecord, TurnState
from dressage_blackbox_server.output import read_answer, read_thread_id


def check_prompt(adapter: AgentAdapter, prompt: str) -> None:
    """Refuse a prompt that could not be handed over. Raises :class:`RequestError`."""
    if not prompt:
        raise RequestError("prompt is empty: give the agent something to do")
    large = len(prompt.encode()) > ARGV_PROMPT_BYTES
    for first in (adapter.first, adapter.resume or adapter.first):
        on_argv = any("{prompt}" in text for text in first.argv)
        if on_argv and "\x00" in prompt:
            raise RequestError(f"prompt holds a NUL, which agent {adapter.name!r} takes on argv: remove it")
        spare = adapter.resume_large if first is adapter.resume else adapter.first_large
        if on_argv and large and spare is None:
            raise PromptTooLargeError(
                f"prompt is {len(prompt.encode())} bytes and agent {adapter.name!r} takes it on argv only: "
                f"at most {ARGV_PROMPT_BYTES}"
            )


async def run_turn(
    adapter: AgentAdapter,
    config: SessionConfig,
    executor: Executor,
    turn: TurnRecord,
    prompt: str,
    earlier: Sequence[TurnRecord],
) -> TurnRecord:
    """Run the program for ``turn``; ``earlier`` are the session's turns whose program ran before it.

    Raises :class:`LaunchError`, :class:`ExecutorError` or whatever the executor raises; a program that ran is
    a result, however it ended.
    """
    thread_id = next((t.thread_id for t in reversed(earlier) if t.thread_id), "")
    values = _values(adapter, config, turn, prompt, thread_id)
    launch = _choose(adapter, prompt, resuming=bool(earlier), thread_id=thread_id)
    argv = fill_argv(launch.argv, values, config.args)
    if not argv:
        raise LaunchError(f"agent {adapter.name!r} has no argv: give the program as the session's args")
    await _write_files(adapter, executor, values, first=not earlier)
    began = time.monotonic()
    result = await executor.run(
        argv,
        env={**{name: fill(text, values) for name, text in adapter.env.items()}, **config.env},
        cwd=config.workdir,
        stdin=fill(launch.stdin, values).encode(),
        timeout_s=config.turn_timeout_s,
        output_bytes=config.output_bytes,
    )
    return _record(adapter, turn, result, time.monotonic() - began)


async def _write_files(
    adapter: AgentAdapter, executor: Executor, values: Mapping[str, str], *, first: bool
) -> None:
    """The adapter's files and the prompt's. Raises :class:`LaunchError`: without them nothing is started."""
    files = {
        fill(file.path, values): fill(file.content, values)
        for file in adapter.files
        if first or not file.once
    }
    if adapter.wants_prompt_file:
        files[values["prompt_file"]] = values["prompt"]
    try:
        for path, content in files.items():
            await executor.write(path, content.encode())
    except ExecutorError as error:
        raise LaunchError(f"the program was not started: {error}") from error


def _values(
    adapter: AgentAdapter, config: SessionConfig, turn: TurnRecord, prompt: str, thread_id: str
) -> Mapping[str, str]:
    values = {
        "openai_url": config.openai_url,
        "anthropic_url": config.anthropic_base,
        "model": config.model,
        "session_uuid": config.session_uuid,
        "thread_id": thread_id,
        "prompt": prompt,
        "home": config.home,
        "workdir": config.workdir,
        "turn_index": str(turn.index),
        "context_tokens": str(config.context_tokens),
        "output_tokens": str(config.output_tokens),
    }
    return {**values, "prompt_file": fill(adapter.prompt_path, values)}


def _choose(adapter: AgentAdapter, prompt: str, *, resuming: bool, thread_id: str) -> Launch:
    launch, spare = adapter.first, adapter.first_large
    if resuming and adapter.resume is not None:
        needs_thread = any("{thread_id}" in text for text in adapter.resume.argv)
        if thread_id or not needs_thread:  # without the agent's own name there is nothing to resume
            launch, spare = adapter.resume, adapter.resume_large
    large = len(prompt.encode()) > ARGV_PROMPT_BYTES
    if large and spare is not None and any("{prompt}" in text for text in launch.argv):
        return spare
    return launch


def _record(adapter: AgentAdapter, turn: TurnRecord, result: ExecResult, seconds: float) -> TurnRecord:
    stdout = result.stdout.decode(errors="replace")
    outcome = TurnOutcome.TIMEOUT if result.timed_out else adapter.outcome_of(result.exit_code)
    detail = ""
    if outcome is not TurnOutcome.OK:
        detail = "no end in time" if result.timed_out else f"the program ended with {result.exit_code}"
    return turn.model_copy(
        update={
            "state": TurnState.COMMITTED if outcome is TurnOutcome.OK else TurnState.FAILED,
            "outcome": outcome,
            "exit_code": None if result.timed_out else result.exit_code,
            "output": read_answer(adapter.output, stdout),
            "stdout": stdout,
            "stderr": result.stderr.decode(errors="replace"),
            "thread_id": read_thread_id(adapter.output, stdout),
            "duration_s": seconds,
            "detail": detail,
        }
    )
