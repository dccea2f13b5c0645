"""Public failure cases of this component."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from dressage_blackbox_server import (
    LocalExecutor,
    MemoryJournal,
    SessionConfig,
    SessionLostError,
    SessionState,
    TurnActiveError,
    TurnMismatchError,
    TurnOutcome,
    TurnState,
    UnknownTurnError,
    known_agents,
    shell_args,
)
from dressage_blackbox_server.client import BlackboxClient
from dressage_blackbox_server.server import build_app
from dressage_blackbox_server.service import BlackboxService

KEY = "k" * 16


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


class DroppingTransport(httpx.ASGITransport):
    """Delivers every request, and loses the first ``drops`` replies on their way back."""

    def __init__(self, app, drops: int) -> None:
        super().__init__(app)
        self.drops = drops
        self.requests: list[httpx.Request] = []

    async def handle_async_request(self, request):
        self.requests.append(request)
        response = await super().handle_async_request(request)
        if self.drops > 0:
            self.drops -= 1
            await response.aread()
            raise httpx.ReadTimeout("the gateway gave up", request=request)
        return response


@asynccontextmanager
async def client_of(service: BlackboxService, *, drops: int = 0, **settings) -> AsyncIterator[BlackboxClient]:
    transport = DroppingTransport(build_app(service, KEY), drops)
    async with httpx.AsyncClient(transport=transport) as http:
        yield BlackboxClient(http, "http://blackbox", KEY, backoff_s=0.0, **settings)


@pytest.fixture
async def service(executor) -> AsyncIterator[BlackboxService]:
    service = BlackboxService(lambda config: executor, known_agents(), MemoryJournal())
    yield service
    await service.aclose()


async def test_c57_a_client_that_times_out_and_retries_gets_the_one_result_of_the_one_run(
    service, executor, config
):
    executor.gate = asyncio.Event()
    async with client_of(service, drops=3, wait_s=0.02) as client:
        service.create(config, "s1")
        turn = asyncio.create_task(client.turn("s1", "t1", "do it"))
        await executor.started.wait()
        await until(lambda: client._http._transport.drops == 0)  # every reply so far was lost
        executor.gate.set()
        result = await turn
    assert (result.state, result.output) == (TurnState.COMMITTED, "done")
    assert len(executor.runs) == 1


async def test_c57_a_reply_lost_after_the_commit_is_given_again(service, executor, config):
    async with client_of(service, drops=2) as client:
        service.create(config, "s1")
        result = await client.turn("s1", "t1", "do it")
        assert result == await client.get_turn("s1", "t1")
    assert result.state is TurnState.COMMITTED
    assert len(executor.runs) == 1


async def test_c57_a_second_turn_while_one_is_active_is_a_409_and_so_is_a_reused_id(
    service, executor, config
):
    executor.gate = asyncio.Event()
    async with client_of(service, wait_s=0.0) as client:
        service.create(config, "s1")
        first = asyncio.create_task(client.turn("s1", "t1", "do it"))
        await executor.started.wait()
        with pytest.raises(TurnActiveError):
            await client.turn("s1", "t2", "another")
        with pytest.raises(TurnMismatchError):
            await client.turn("s1", "t1", "another")
        with pytest.raises(UnknownTurnError):
            await client.get_turn("s1", "t2")
        headers = {"authorization": f"Bearer {KEY}"}
        body = {"turn_id": "t2", "prompt": "x"}
        raw = await client._http.post("http://blackbox/sessions/s1/turns", json=body, headers=headers)
        assert (raw.status_code, raw.json()["error"]["code"]) == (409, "turn_active")
        executor.gate.set()
        assert (await first).state is TurnState.COMMITTED


async def test_c57_a_queued_turn_can_be_cancelled_and_never_runs(executor, config):
    executor.gate = asyncio.Event()
    service = BlackboxService(lambda c: executor, known_agents(), MemoryJournal(), max_running=1)
    async with client_of(service, wait_s=0.0) as client:
        for name in ("s1", "s2"):
            service.create(config, name)
        running = asyncio.create_task(client.turn("s1", "t1", "do it"))
        await executor.started.wait()
        queued = asyncio.create_task(client.turn("s2", "t1", "wait"))
        await until(lambda: service.get("s2").turns)
        assert (await client.get_turn("s2", "t1")).state is TurnState.QUEUED
        assert (await client.cancel("s2", "t1")).state is TurnState.CANCELLED
        assert (await queued).outcome is TurnOutcome.CANCELLED
        executor.gate.set()
        assert (await running).state is TurnState.COMMITTED
    assert len(executor.runs) == 1


def free_port() -> int:
    """Below those that the kernel gives out: nobody else is given it before it is used, twice."""
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@asynccontextmanager
async def serving(state: Path, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dressage_blackbox_server.cli", "serve", "--port", str(port),
        "--state", str(state),
        env={"PATH": os.environ["PATH"], "DRESSAGE_BLACKBOX_KEY": KEY}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 120)
        assert line == b"dressage-blackbox-server ready on http://127.0.0.1:%d\n" % port
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.communicate()


async def test_c57_a_server_killed_in_mid_turn_says_unknown_after_its_restart_and_runs_nothing_again(
    tmp_path,
):
    state, port, ran = tmp_path / "state", free_port(), tmp_path / "ran"
    line = f"echo run >> {ran}; exec sleep 30"
    config = SessionConfig(
        agent="command",
        openai_url="http://h/v1",
        args=shell_args(line),
        workdir=str(tmp_path),
        home=str(tmp_path),
    )
    quick = config.model_copy(update={"args": ("true",)})
    async with httpx.AsyncClient() as http:
        client = BlackboxClient(http, f"http://127.0.0.1:{port}", KEY, wait_s=0.2, retries=0)
        async with serving(state, port) as server:
            await client.create(config, "s1")
            await client.create(quick, "s2")
            finished = await client.turn("s2", "t1", "quick")
            turn = asyncio.create_task(client.turn("s1", "t1", "slow"))
            await until(ran.exists)
            server.kill()
            await server.wait()
            with pytest.raises(ConnectionError):
                await turn
        async with serving(state, port):
            cut = await client.get_turn("s1", "t1")
            assert (cut.state, cut.outcome) == (TurnState.UNKNOWN, TurnOutcome.UNKNOWN)
            assert await client.turn("s1", "t1", "slow") == cut  # the retry gets the same answer
            assert (await client.session("s1")).state is SessionState.LOST
            with pytest.raises(SessionLostError, match="abort the sample"):
                await client.turn("s1", "t2", "more")
            assert await client.turn("s2", "t1", "quick") == finished
            assert (await client.turn("s2", "t2", "more")).state is TurnState.COMMITTED
    assert ran.read_text() == "run\n"
    _end_orphans(tmp_path)


def _end_orphans(folder: Path) -> None:
    """kill -9 of the server leaves its program; inside a real sandbox the sandbox ends it."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cwd").readlink() == folder:
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue


@pytest.mark.parametrize(
    ("line", "code"), [("sh -c 'exit 9' | tee log", 9), ("exit 9", 9), ("true | tee log", 0)]
)
async def test_c44_the_exit_code_of_an_agent_is_not_lost_in_a_pipe(open_session, tmp_path, line, code):
    session = open_session(
        config=SessionConfig(
            agent="command",
            openai_url="http://h/v1",
            args=shell_args(line),
            workdir=str(tmp_path),
            home=str(tmp_path / "home"),
        )
    )
    session._executor = LocalExecutor({"PATH": os.environ["PATH"]})
    turn = await session.turn("t1", "go")
    assert turn.exit_code == code
    assert turn.outcome is (TurnOutcome.AGENT_FAILED if code else TurnOutcome.OK)
