"""One run through a proxy: each recorded request in its order, answered by the scripted engine."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import numpy as np
from dressage_segments import AuditReport, Trajectory, TrajectoryTree, audit, tree_from_records
from dressage_store import FilesStore
from dressage_tito import ChatCodec
from numpy.typing import NDArray

from dressage_proxy.app import Proxy
from dressage_proxy.client import ProxyClient
from dressage_proxy.engine.scripted import Output, ScriptedEngine
from dressage_proxy.replay.answers import Script, UnwritableError, script
from dressage_proxy.replay.traffic import Call, Row, Run
from dressage_proxy.replay.wire import Told, read_reply, renamed


@dataclass(slots=True)
class Step:
    """A call that was replayed: what the engine saw and sampled for it, int32 arrays."""

    call: Call
    status: int
    rid: str = ""
    prompt: NDArray[np.int32] | None = None
    sampled: NDArray[np.int32] | None = None
    kept: int | None = None
    """How many of ``sampled`` the client has, where its stream was cut."""
    left: bool = False
    """The client was gone before the reply."""


@dataclass(slots=True)
class Replayed:
    """A run after its replay."""

    run: Run
    steps: list[Step]
    errors: list[str]
    tree: TrajectoryTree
    trajectory: Trajectory
    report: AuditReport


@dataclass(slots=True)
class Rig:
    """A proxy on real sockets, its engine and store."""

    codec: ChatCodec
    engine: ScriptedEngine
    store: FilesStore
    proxy: Proxy
    control: ProxyClient
    http: httpx.AsyncClient


@dataclass(slots=True)
class _Driver:
    rig: Rig
    session: str
    names: dict[str, str] = field(default_factory=dict)
    """Recorded id or handle -> this proxy's."""
    errors: list[str] = field(default_factory=list)
    made: Script | None = None

    async def call(self, call: Call) -> Step:
        """Send one recorded call."""
        engine = self.rig.engine
        before = len(engine.requests)
        self.made = self._script(call) if call.request is not None else None
        engine.policy = lambda *_: self._sampled()
        left = call.row.answer.startswith("!") and call.echo is None
        status = await (self._leave(call.row, before) if left else self._ask(call))
        step = Step(call, status, left=left)
        if len(engine.requests) > before:
            sampled = engine.requests[-1]
            step.rid = sampled.rid
            step.prompt = np.asarray(sampled.input_ids, np.int32)
            step.sampled = np.asarray(sampled.output_ids, np.int32)
            step.kept = self.made.kept if self.made else None
        return step

    def _script(self, call: Call) -> Script:
        try:
            return script(self.rig.codec, call)
        except UnwritableError as error:
            self.errors.append(f"request {call.row.path}: its answer cannot be written: {error}")
            return script(self.rig.codec, replace(call, echo=None))

    def _sampled(self) -> Output:
        assert self.made is not None
        return Output(self.made.ids, matched=self.made.ids[-1])

    async def _ask(self, call: Call) -> int:
        reply = await self._post(call.row)
        where = f"request {call.row.path} ({call.row.answer})"
        if reply.status_code != 200:
            self.errors.append(f"{where}: {reply.status_code} {reply.text[:300]}")
            return reply.status_code
        try:
            told = read_reply(call.row.path, reply.text, stream=bool(call.row.body.get("stream")))
        except (ValueError, KeyError, IndexError) as error:
            self.errors.append(f"{where}: the reply does not read: {error!r}")
            return reply.status_code
        self._learn(call, told, where)
        return reply.status_code

    def _learn(self, call: Call, told: Told, where: str) -> None:
        """Note what this proxy calls what the recording called otherwise."""
        if call.echo is None:
            return
        recorded = [made["id"] for made in call.echo.get("tool_calls") or []]
        if len(told.calls) < len(recorded):
            self.errors.append(f"{where}: {len(told.calls)} calls came back, {len(recorded)} were recorded")
        self.names.update(zip(recorded, told.calls, strict=False))
        if call.echo_handle and told.handle:
            self.names[call.echo_handle] = told.handle

    async def _post(self, row: Row) -> httpx.Response:
        body: Any = renamed(row.body, self.names)
        query = f"?{row.query}" if row.query else ""
        headers = {
            name: text for name, text in row.headers.items() if name.startswith(("x-", "thread-", "anth"))
        }
        return await self.rig.http.post(f"/s/{self.session}{row.path}{query}", json=body, headers=headers)

    async def _leave(self, row: Row, before: int) -> int:
        """Ask, and be gone once the engine samples."""
        engine, pipeline = self.rig.engine, self.rig.proxy.pipeline
        engine.hold_after = 1
        task = asyncio.create_task(self._post(row))
        while len(engine.requests) == before and not task.done():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0)
        task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        while pipeline.attempts.of(self.session):  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.001)
        await engine.release()
        if isinstance(result, httpx.Response) and result.status_code != 200:
            self.errors.append(f"request {row.path} ({row.answer}): {result.status_code} {result.text[:300]}")
        return 499


async def replay_run(rig: Rig, run: Run) -> Replayed:
    """Replay one run in a session of its own and finalise it."""
    rig.engine.requests.clear()
    session = (await rig.control.open(instance_id=run.name)).session_id
    driver = _Driver(rig, session)
    calls = iter(run.calls)
    steps = []
    for row in run.rows:
        if row.dialect is not None:
            steps.append(await driver.call(next(calls)))
            continue
        reply = await rig.http.request(row.method, f"/s/{session}{row.path}", json=row.body or None)
        known = row.path.startswith("/v1/") or row.method != "POST"
        if reply.status_code != 200 and (known or reply.status_code != 404):  # others are told plainly
            driver.errors.append(f"{row.method} {row.path}: {reply.status_code} {reply.text[:300]}")
    await rig.control.finalize(session, outcome={"reward": 1.0})
    records = list(rig.store.records(session))
    trajectory = rig.store.read(session)
    return Replayed(
        run, steps, driver.errors, tree_from_records(records), trajectory, audit(records, trajectory)
    )
