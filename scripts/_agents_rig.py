"""The real programs over a real proxy: each in a sandbox of its own, driven as a rollout drives them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np
from _agents_hop import Asked, Hop
from _agents_install import FOLDER, INSIDE, Installed
from _agents_plans import WORKDIR, Job
from dressage_blackbox_server import AgentAdapter, AgentSession, SessionConfig, TurnRecord
from dressage_paddock.executor import SandboxExecutor
from dressage_proxy.client import ProxyClient
from dressage_proxy.engine.scripted import Policy, ScriptedEngine, serve_scripted
from dressage_proxy.engine.scripted_http import serving
from dressage_proxy.replay.drive import Replayed, Step
from dressage_proxy.replay.traffic import Call, runs_from_rows
from dressage_sandbox import BubblewrapProvider
from dressage_sandbox.protocol import Limits, Mount, Sandbox, SandboxSpec
from dressage_segments import audit, tree_from_records
from dressage_store import FilesStore
from dressage_tito import ChatCodec
from numpy.typing import NDArray

from benchmarks._proxy_rig import Proxied, proxy, small_tokenizer_folder

_WINDOW = 1 << 20
_TOLD_WINDOW = 400_000  # the toy tokenizer makes three times the tokens of a real one
_TIMEOUT_S = 120.0
_GIB = 1 << 30
_LIMITS = Limits(memory_bytes=4 * _GIB, pids=512, open_files=4096, disk_bytes=_GIB, timeout_s=_TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class Done:
    """How it went."""

    turns: tuple[TurnRecord, ...]
    files: Mapping[str, str]
    asked: tuple[Asked, ...]
    replayed: Replayed
    """The session as the checks of replays take it."""


@dataclass(frozen=True, slots=True)
class Rig:
    """What every row shares."""

    codec: ChatCodec
    engine: ScriptedEngine
    proxied: Proxied
    hop: Hop
    address: str
    """Of the hop, ``host:port``."""
    control: ProxyClient
    provider: BubblewrapProvider

    async def run(
        self, adapter: AgentAdapter, installed: Installed, name: str, job: Job, policy: Policy
    ) -> Done:
        """One agent, one session, all of its turns."""
        await self.engine.release()
        self.engine.requests.clear()
        self.engine.policy = policy
        self.hop.begin(adapter.name, name, job.cuts)
        self.engine.inject(*job.faults)
        opened = await self.control.open(instance_id=name, limits=job.limits or None)
        spec = SandboxSpec(
            mounts=(Mount(FOLDER, INSIDE),), workdir=WORKDIR, limits=_LIMITS, relay=self.address
        )
        sandbox = await self.provider.create(spec)
        try:
            inside = sandbox.relay_url
            assert inside is not None
            window = job.limits.get("context_window", _TOLD_WINDOW)
            config = SessionConfig(
                agent=adapter.name,
                openai_url=inside + urlsplit(opened.openai_url).path,
                anthropic_url=inside + urlsplit(opened.anthropic_url).path,
                env={"PATH": installed.path(INSIDE), "TERM": "dumb", "NO_COLOR": "1"},
                workdir=WORKDIR,
                turn_timeout_s=_TIMEOUT_S,
                context_tokens=window,
                output_tokens=min(8192, window // 4),
            )
            executor = SandboxExecutor(sandbox)
            async with AgentSession(opened.session_id, config, adapter, executor) as session:
                turns = await self._turns(session, job)
            files = await _files(sandbox)
        finally:
            await sandbox.terminate()
        return Done(tuple(turns), files, tuple(self.hop.asked), await self._read(opened.session_id, name))

    async def _turns(self, session: AgentSession, job: Job) -> list[TurnRecord]:
        turns = []
        for number, prompt in enumerate(job.prompts):
            turn = f"turn-{number}"
            if number == 0 and job.kill_first:
                self.engine.hold_after = 1
                session.submit(turn, prompt)
                async with asyncio.timeout(_TIMEOUT_S):
                    await self.engine.until_running(1)
                turns.append(await session.cancel(turn))
                async with asyncio.timeout(_TIMEOUT_S):
                    await self.engine.until_running(0)
                await self.engine.release()
                continue
            turns.append(await session.turn(turn, prompt))
        return turns

    async def _read(self, session_id: str, name: str) -> Replayed:
        await self.control.finalize(session_id, outcome={"reward": 1.0})
        with FilesStore(self.proxied.store, read_only=True) as store:
            records = list(store.records(session_id))
            trajectory = store.read(session_id)
        asked = [one for one in self.hop.settle() if one.row.dialect is not None]
        run = runs_from_rows([one.told() for one in self.hop.asked])[0]
        _name_by_calls(asked, run.calls)
        steps = [_step(one, call, self.codec) for one, call in zip(asked, run.calls, strict=True)]
        report = audit(records, trajectory)
        return Replayed(run, steps, [], tree_from_records(records), trajectory, report)


def _name_by_calls(asked: Sequence[Asked], calls: Sequence[Call]) -> None:
    """Give each call the answer whose ids its reply handed out: two that asked the very same look alike."""
    known = {call.echo_name: (call.echo, call.echo_handle) for call in calls}
    ids = [name.removeprefix("call:") for name in known if name.startswith("call:")]
    for one, call in zip(asked, calls, strict=True):
        own = next((f"call:{wire}" for wire in ids if wire.encode() in one.reply), "")
        if own or call.echo_name.startswith("call:"):
            call.echo_name = own
            call.echo, call.echo_handle = known[own] if own else (None, "")


def _step(asked: Asked, call: Call, codec: ChatCodec) -> Step:
    step = Step(call, asked.status, left=asked.left)
    if asked.sampled is not None:
        step.rid = asked.sampled.rid
        step.prompt = _array(asked.sampled.input_ids)
        step.sampled = _array(asked.sampled.output_ids)
        whole = _echoed(codec, call, asked.sampled.output_ids)
        if asked.cut and not whole:
            step.kept = 1  # how much the agent kept of it is the agent's matter
    return step


def _echoed(codec: ChatCodec, call: Call, ids: Sequence[int]) -> bool:
    """Whether the agent goes on from all that was said: calls tell, whatever became of the text beside them.
    Words of its own in the reply's place are no echo."""
    if call.echo is None or call.request is None:
        return False
    said = codec.parse(ids, reasoning_open=False, finish_reason="stop", tools=call.request.tools)
    text, calls = (call.echo.get("content") or "").strip(), call.echo.get("tool_calls") or []
    if not calls and not said.content.strip().startswith(text):
        call.echo, call.echo_name, call.echo_handle = None, "", ""
        return False
    return len(calls) == len(said.tool_calls) and (bool(calls) or text == said.content.strip())


def _array(ids: Sequence[int]) -> NDArray[np.int32]:
    return np.asarray(ids, np.int32)


async def _files(sandbox: Sandbox) -> dict[str, str]:
    """The text files that the agent left in its work folder."""
    entries = await sandbox.list(WORKDIR)
    names = [entry.name for entry in entries if entry.kind == "file"]
    return {name: (await sandbox.read(f"{WORKDIR}/{name}")).decode(errors="replace") for name in names}


@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    """Engine, proxy, hop and sandboxes."""
    engine = ScriptedEngine()
    async with AsyncExitStack() as stack:
        tokenizer: Path = stack.enter_context(small_tokenizer_folder())
        url = await stack.enter_async_context(serve_scripted(engine))
        options = ("--store-retain", "--context-window", str(_WINDOW), "--max-output-tokens", str(_WINDOW))
        # It starts in a thread: it asks the engine, which lives here.
        proxied = await asyncio.to_thread(stack.enter_context, proxy(url, tokenizer, *options))
        data_url = str(proxied.served.ready["data_url"])
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=data_url, timeout=None, trust_env=False)
        )
        hop = Hop(engine, http)
        address = (await stack.enter_async_context(serving(hop, 0))).removeprefix("http://")
        control = await stack.enter_async_context(proxied.client())
        provider = BubblewrapProvider()
        stack.push_async_callback(provider.close)
        codec = ChatCodec.from_folder(tokenizer)
        yield Rig(codec, engine, proxied, hop, address, control, provider)
