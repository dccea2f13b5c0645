"""A scripted executor: no processes, every step under the test's control."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from dressage_blackbox_server import COMMAND, AgentAdapter, AgentSession, ExecResult, SessionConfig


@dataclass
class Run:
    """One call of the executor's run."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    stdin: bytes
    timeout_s: float


@dataclass
class ScriptedExecutor:
    """Answers ``result`` (or raises it), after ``gate`` opens where one is set."""

    result: ExecResult | BaseException = field(default_factory=lambda: ExecResult(0, b"done", b"", False))
    gate: asyncio.Event | None = None
    runs: list[Run] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: int = 0

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        stdin: bytes = b"",
        timeout_s: float,
        output_bytes: int,
    ) -> ExecResult:
        self.runs.append(Run(tuple(argv), dict(env), cwd, stdin, timeout_s))
        self.started.set()
        try:
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result

    async def write(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        self.files[path] = data


@pytest.fixture
def executor() -> ScriptedExecutor:
    return ScriptedExecutor()


@pytest.fixture
def config() -> SessionConfig:
    return SessionConfig(
        agent="command",
        openai_url="http://127.0.0.1:8800/s/abc/v1",
        args=("agent", "--fast"),
        session_uuid="u-1",
    )


@pytest.fixture
async def open_session(executor, config) -> AsyncIterator[Callable[..., AgentSession]]:
    """Makes sessions over the scripted executor and closes them."""
    async with AsyncExitStack() as stack:

        def make(adapter: AgentAdapter = COMMAND, **more: Any) -> AgentSession:
            session = AgentSession("s1", more.pop("config", config), adapter, executor, **more)
            stack.push_async_callback(session.close)
            return session

        yield make
