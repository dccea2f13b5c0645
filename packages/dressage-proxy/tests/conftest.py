"""A proxy over a scripted engine, in this process on real sockets or as the real command."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import uvicorn
from dressage_proxy import Proxy, ProxyConfig
from dressage_proxy.app import running
from dressage_proxy.engine.scripted import Output, Policy, ScriptedEngine, replies
from dressage_proxy.serving import Protocol
from dressage_segments import Trajectory, TrajectoryTree, audit, tree_from_records
from dressage_store import FilesStore
from dressage_tito import ChatCodec
from dressage_tito.toy import write_toy_tokenizer
from uvicorn.server import ServerState

KEY = "control-key-of-these-tests"

SHELL = {
    "type": "function",
    "function": {
        "name": "shell",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_tokenizer(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="session")
def codec(toy_folder: Path) -> ChatCodec:
    return ChatCodec.from_folder(toy_folder)


@pytest.fixture(scope="session")
def shell() -> dict[str, Any]:
    """A tool."""
    return SHELL


def call_text(name: str = "shell", **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture(scope="session")
def call() -> Callable[..., str]:
    """The text of a tool call as the toy family writes it."""
    return call_text


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """An ASGI application on a real socket of the loopback; ends at once, whatever is still going on."""
    # Idle connections are the clients' to give up: what both end at once may have a request on it.
    config = uvicorn.Config(
        app, http="httptools", ws="none", lifespan="off", log_config=None, timeout_keep_alive=75
    )
    config.load()
    state = ServerState()

    def protocol() -> asyncio.Protocol:
        return Protocol(config, state, {})

    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in state.tasks:
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)
        for connection in list(state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)


@dataclass
class Rig:
    """A proxy on a real socket, its engine, and clients."""

    codec: ChatCodec
    engine: ScriptedEngine
    store: FilesStore
    proxy: Proxy
    url: str
    http: httpx.AsyncClient
    stack: AsyncExitStack
    key: str = KEY
    made: dict[str, openai.AsyncOpenAI] = field(default_factory=dict)

    def ids(self, text: str) -> list[int]:
        return self.codec.encode_sample(text)

    def script(self, *texts: str) -> None:
        """What the engine samples: these in order from now on, the last again and again."""
        first = len(self.engine.requests)
        policy = replies([self.ids(text) for text in texts])
        self.engine.policy = lambda ids, params, number: policy(ids, params, number - first)

    def script_raw(self, *outputs: Sequence[int] | Output) -> None:
        """Ids as they are, without a stop token."""
        first = len(self.engine.requests)
        self.engine.policy = lambda ids, params, number: outputs[min(number - first, len(outputs) - 1)]

    async def open(self, **body: Any) -> str:
        reply = await self.http.post("/sessions", json={"instance_id": "i", **body})
        assert reply.status_code == 201, reply.text
        return str(reply.json()["session_id"])

    def openai(self, session: str) -> openai.AsyncOpenAI:
        if session not in self.made:
            client = openai.AsyncOpenAI(
                base_url=f"{self.url}/s/{session}/v1",
                api_key="unused",
                max_retries=0,
                timeout=20,
                http_client=openai.DefaultAsyncHttpxClient(verify=False, trust_env=False),
            )
            self.stack.push_async_callback(client.close)
            self.made[session] = client
        return self.made[session]

    async def chat(self, session: str, *messages: Any, **parameters: Any) -> Any:
        """A completion; plain texts are user messages."""
        turned = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages]
        return await self.openai(session).chat.completions.create(model="any", messages=turned, **parameters)

    def post(self, session: str, body: Any, **options: Any) -> Awaitable[httpx.Response]:
        """The chat route without a client library."""
        return self.http.post(f"/s/{session}/v1/chat/completions", json=body, **options)

    def tree(self, session: str) -> TrajectoryTree:
        """The session's turns as the log has them."""
        return tree_from_records(self.store.records(session))

    async def end(self, session: str, **body: Any) -> Trajectory:
        """Finalise; the trajectory, audited."""
        reply = await self.http.post(f"/sessions/{session}/finalize", json=body)
        assert reply.status_code == 200, reply.text
        trajectory = self.store.read(session)
        report = audit(self.store.records(session), trajectory)
        assert report.ok, report.findings
        assert report.proven_tokens == report.trained_tokens == reply.json()["trained_tokens"]
        assert trajectory.sampled_tokens == trajectory.trained_tokens + sum(trajectory.lost_tokens.values())
        return trajectory


MakeRig = Callable[..., Awaitable[Rig]]


@pytest.fixture
async def make_rig(codec: ChatCodec, toy_folder: Path, tmp_path: Path) -> AsyncIterator[MakeRig]:
    """Start proxies: ``await make_rig(context_window=64, policy=…)``; the same store again resumes it."""
    async with AsyncExitStack() as stack:

        async def make(
            *,
            policy: Policy | None = None,
            engine: ScriptedEngine | None = None,
            store: FilesStore | None = None,
            engines: tuple[str, ...] | None = None,
            codec: ChatCodec = codec,
            **options: Any,
        ) -> Rig:
            engine = engine or ScriptedEngine(policy)
            if engines is None:
                engines = (await stack.enter_async_context(serving(engine)),)
                stack.callback(engine.stop)
            root = tmp_path / "store"
            if store is None:
                store = stack.enter_context(FilesStore(root, retain=True))
            config = ProxyConfig(
                tokenizer=toy_folder, engines=engines, store=root, control_key=KEY, **options
            )
            proxy = await stack.enter_async_context(running(Proxy.build(config, store, codec)))
            apps: list[Any] = []

            async def app(scope: Any, receive: Any, send: Any) -> None:
                await apps[0](scope, receive, send)

            url = await stack.enter_async_context(serving(app))
            apps.append(proxy.app(url))
            http = await stack.enter_async_context(
                httpx.AsyncClient(
                    base_url=url,
                    headers={"Authorization": f"Bearer {KEY}"},
                    timeout=20,
                    trust_env=False,
                    verify=False,  # no certificates to load: it is all plain HTTP
                )
            )
            return Rig(codec, engine, store, proxy, url, http, stack)

        yield make


@pytest.fixture
async def rig(make_rig: MakeRig) -> Rig:
    """One proxy over one scripted engine."""
    return await make_rig()


@dataclass
class Served:
    """A ``dressage-proxy serve`` or scripted engine of its own, with the ready line that it printed."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


Spawn = Callable[..., Served]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """``spawn(module, *arguments)`` runs a module and waits for its ready line."""
    made: list[subprocess.Popen[str]] = []

    def start(module: str, *arguments: str | Path, **environment: str) -> Served:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        made.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"{module} ended with {process.wait(10)} before it was ready"
        return Served(process, json.loads(line))

    yield start
    for process in made:
        process.kill()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()
