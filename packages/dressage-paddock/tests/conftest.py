"""Fixtures: fake parts for the fast tests, and the real chain (bubblewrap, proxy, scripted engine)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import httpx
import pytest
from dressage_paddock import WhiteboxPaddock
from dressage_paddock.fake import ScriptedGateway
from dressage_proxy.client import ProxyClient
from dressage_proxy.engine.scripted import ScriptedEngine, serve_scripted
from dressage_sandbox import BubblewrapProvider, Mount
from dressage_sandbox.fake import FakeProvider
from dressage_segments import AuditReport, audit
from dressage_store import FilesStore
from dressage_tito.toy import write_toy_tokenizer
from packaging.requirements import Requirement
from tokenizers import Tokenizer


@dataclass
class Fakes:
    """A paddock over fake parts, and the parts."""

    paddock: WhiteboxPaddock
    provider: FakeProvider
    gateway: ScriptedGateway
    http: httpx.AsyncClient

    def assert_nothing_left(self) -> None:
        assert self.provider.live == []
        assert self.gateway.open_sessions == []
        assert self.paddock.live_leases == 0


@pytest.fixture
async def fakes() -> AsyncIterator[Callable[..., Fakes]]:
    """Builds a whitebox paddock over fakes; the script is a list of replies or a function."""
    async with AsyncExitStack() as stack:

        def build(script: Any, *, provider: FakeProvider | None = None, **settings: Any) -> Fakes:
            gateway = ScriptedGateway(script)
            http = gateway.client()
            stack.push_async_callback(http.aclose)
            where = provider or FakeProvider()
            return Fakes(WhiteboxPaddock(where, gateway, http, **settings), where, gateway, http)

        yield build


@pytest.fixture(scope="session")
def inside_python() -> tuple[str, str]:
    """Which interpreter of the provider has this one's version (compiled packages load in no other), and
    where it is inside."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    system = Path("/usr/bin/python3")
    if system.exists() and system.resolve().name == name:
        return "system", f"/usr/bin/{name}"
    return "base", f"/opt/dressage/python/bin/{name}"


@pytest.fixture
async def bubblewrap(tmp_path: Path, inside_python: tuple[str, str]) -> AsyncIterator[BubblewrapProvider]:
    """A real provider. Where user namespaces are forbidden the probe fails and says how to allow them."""
    provider = BubblewrapProvider(
        runtime_dir=tmp_path / "sandboxes", interpreter=inside_python[0], reaper=False
    )
    await provider.probe()
    try:
        yield provider
    finally:
        await provider.close()


@dataclass
class Recorder:
    """A running proxy over a scripted engine that this process serves."""

    client: ProxyClient
    engine: ScriptedEngine
    store: Path
    tokenizer: Tokenizer

    def script(self, replies: Sequence[str]) -> None:
        """Let the engine answer reply n of a conversation with ``replies[n]`` (the last one repeats)."""
        begin = self.tokenizer.token_to_id("<|im_start|>")
        ids = [self.tokenizer.encode(reply, add_special_tokens=False).ids for reply in replies]

        def policy(input_ids: list[int], params: Mapping[str, Any], number: int) -> list[int]:
            turns = [i for i in range(len(input_ids) - 1) if input_ids[i] == begin]
            told = [self.tokenizer.decode(input_ids[i + 1 : i + 12]).startswith("assistant") for i in turns]
            reply = ids[min(sum(told) - 1, len(ids) - 1)]  # the last header is the one being answered
            return [*reply, *list(params.get("stop_token_ids") or ())[:1]]

        self.engine.policy = policy


@contextmanager
def engine_in_a_thread(engine: ScriptedEngine) -> Iterator[str]:
    """Serve ``engine`` on a loop of its own, so that it outlives one test's; yields its URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    serving = serve_scripted(engine)
    try:
        yield asyncio.run_coroutine_threadsafe(serving.__aenter__(), loop).result(10)
        asyncio.run_coroutine_threadsafe(serving.__aexit__(None, None, None), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@dataclass
class Chain:
    """What `dressage-proxy serve` said when it was ready, and what is behind it."""

    control_url: str
    control_key: str
    engine: ScriptedEngine
    store: Path
    tokenizer: Tokenizer


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    """`dressage-proxy serve` as a process of its own, control plane apart, over a scripted engine."""
    place = tmp_path_factory.mktemp("chain")
    folder, store = write_toy_tokenizer(place / "tokenizer"), place / "store"
    engine = ScriptedEngine(weight_version="7")
    with engine_in_a_thread(engine) as engine_url:
        command = [
            sys.executable, "-m", "dressage_proxy.cli", "serve", "--tokenizer", folder,
            "--engine", engine_url, "--store", store, "--port", "0", "--control-port", "0", "--store-retain",
            "--log-level", "warning", "--context-window", "4096",
        ]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env={"PATH": os.environ["PATH"]})
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            key = Path(ready["control_key_file"]).read_text()
            yield Chain(ready["control_url"], key, engine, store, tokenizer)
        finally:
            process.terminate()
            process.communicate(timeout=20)


@pytest.fixture
async def recorder(chain: Chain) -> AsyncIterator[Recorder]:
    """A control client of the running proxy, and the engine's script."""
    async with ProxyClient(chain.control_url, chain.control_key) as client:
        yield Recorder(client, chain.engine, chain.store, chain.tokenizer)


@pytest.fixture
def audited(recorder: Recorder) -> Callable[[str], AuditReport]:
    """The audit of a finalised session, from what the proxy left on disk."""

    def audit_session(session_id: str) -> AuditReport:
        with FilesStore(recorder.store, read_only=True) as store:
            return audit(store.records(session_id), store.inspect(session_id))

    return audit_session


def distribution_files(name: str, seen: set[str]) -> set[Path]:
    """Top-level files and folders of a distribution and of what it requires, as installed here."""
    if name in seen:
        return set()
    seen.add(name)
    found = distribution(name)
    tops = {Path(str(found.locate_file(f.parts[0]))) for f in found.files or () if f.parts[0] != ".."}
    tops = {top for top in tops if top.name not in ("bin", "__pycache__")}
    for text in found.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            tops |= distribution_files(requirement.name, seen)
    return tops


@pytest.fixture(scope="session")
def openai_mounts() -> tuple[Mount, ...]:
    """The official client and what it needs, read-only, and nothing else of this environment."""
    tops = distribution_files("openai", set())
    return tuple(Mount(top, f"/opt/packages/{top.name}") for top in sorted(tops))
