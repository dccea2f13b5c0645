"""Fixtures: fake parts for the fast tests, and the real chain (bubblewrap, proxy, scripted engine)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
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
from dressage_sandbox import BubblewrapProvider, Mount, SandboxError
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
    """A real provider. On a machine that forbids user namespaces these tests are skipped, saying why."""
    provider = BubblewrapProvider(runtime_dir=tmp_path / "sandboxes", interpreter=inside_python[0])
    try:
        await provider.probe()
    except SandboxError as error:
        pytest.skip(f"no sandboxes on this machine: {error}")
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
    control_key: str

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


@pytest.fixture
async def recorder(tmp_path: Path) -> AsyncIterator[Recorder]:
    """`dressage-proxy serve` as a process of its own."""
    folder = write_toy_tokenizer(tmp_path / "tokenizer")
    engine = ScriptedEngine(weight_version="7")
    async with serve_scripted(engine) as engine_url:
        store = tmp_path / "store"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dressage_proxy.cli", "serve", "--tokenizer", folder,
            "--engine", engine_url, "--store", store, "--port", "0", "--store-retain",
            "--log-level", "warning", "--context-window", "4096",
            stdout=asyncio.subprocess.PIPE, env={"PATH": os.environ["PATH"]},
        )  # fmt: skip
        try:
            assert process.stdout is not None
            line = await asyncio.wait_for(process.stdout.readline(), 30)
            ready = json.loads(line)
            key = await asyncio.to_thread(Path(ready["control_key_file"]).read_text)
            async with ProxyClient(ready["control_url"], key) as client:
                tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
                yield Recorder(client, engine, store, tokenizer, key)
        finally:
            process.terminate()
            await process.communicate()


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
