"""Counters and histograms say what happened: over replies, failures, clients that left, and restarts."""

import asyncio
from collections import Counter

import httpx
import pytest
from dressage_proxy.engine.scripted import Fault
from dressage_proxy.metrics import Metrics
from dressage_segments import FailureClass, Final, final_to_record
from prometheus_client.parser import text_string_to_metric_families

HI = {"messages": [{"role": "user", "content": "hi"}]}


async def counted(rig, prefix="dressage_"):
    text = (await rig.http.get("/metrics")).text
    return {
        (sample.name.removeprefix("dressage_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(prefix) and sample.value
    }


async def left(rig, session, **extra):
    """A client that goes in the middle of its reply."""
    rig.engine.hold_after = 2
    asked = asyncio.create_task(rig.post(session, {**HI, **extra}))
    await rig.engine.until_running(1)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    async with asyncio.timeout(20):
        while rig.proxy.pipeline.attempts.total:
            await asyncio.sleep(0.01)
    await rig.engine.release()


async def test_what_a_load_came_to_is_what_the_counters_say(make_rig):
    rig = await make_rig(engine_attempts=1, context_window=256)
    kept, dropped, broken = [await rig.open() for _ in range(3)]
    statuses = Counter()
    for session in (kept, kept, dropped):
        statuses[str((await rig.post(session, HI)).status_code)] += 1
    await left(rig, kept, max_tokens=7)
    statuses["499"] += 1
    rig.engine.inject(Fault.SERVER_ERROR)
    statuses[str((await rig.post(broken, HI)).status_code)] += 1
    long = {"messages": [{"role": "user", "content": "word " * 400}]}
    statuses[str((await rig.post(broken, long)).status_code)] += 1
    statuses[str((await rig.post("0" * 32, HI)).status_code)] += 1
    assert statuses == {"200": 3, "499": 1, "503": 1, "400": 1, "404": 1}
    trees = {session: rig.tree(session) for session in (kept, dropped, broken)}
    turns = [turn for tree in trees.values() for turn in tree.turns]
    final = await rig.end(kept)
    assert (await rig.http.delete(f"/sessions/{dropped}")).status_code == 204
    made = await counted(rig)
    assert {key[2]: n for key, n in made.items() if key[0] == "requests_total"} == statuses
    assert made["sampled_tokens_total",] == sum(turn.sampled_tokens for turn in turns)
    assert made["prompt_tokens_total",] == sum(turn.calls[0].prompt_tokens for turn in turns)
    assert made["undelivered_turns_total",] == 1
    assert made["trained_tokens_total",] == final.trained_tokens
    lost = Counter(final.lost_tokens) + Counter(deleted=trees[dropped].sampled_tokens)
    assert {key[1]: n for key, n in made.items() if key[0] == "lost_tokens_total"} == lost
    assert made["sampled_tokens_total",] == made["trained_tokens_total",] + lost.total()
    assert made["open_sessions",] == 2
    assert made["phase_seconds_count", "commit"] == 3, "replies that were released"
    assert made["phase_seconds_count", "engine"] == 5
    assert made["phase_seconds_count", "encode"] == 6
    for gone in (("in_flight_calls",), ("waiting_turns",), ("paused",)):
        assert gone not in made, "back at nothing"


async def test_what_a_call_waited_in_a_pause_is_no_time_of_the_engines(rig):
    session = await rig.open()
    await rig.chat(session, "before")
    await rig.http.post("/rollout/pause", json={"timeout_s": 1})
    asked = asyncio.create_task(rig.post(session, HI))
    async with asyncio.timeout(10):
        while not rig.proxy.controller.waiting:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)
    await rig.http.post("/rollout/resume", json={"version": 1})
    assert (await asked).status_code == 200
    made = await counted(rig, "dressage_phase_seconds")
    assert made["phase_seconds_count", "paused"] == 1
    assert made["phase_seconds_sum", "paused"] >= 0.5
    assert made["phase_seconds_count", "engine"] == 2
    waited = made["phase_seconds_sum", "paused"]
    await rig.http.post("/rollout/pause", json={"timeout_s": 1})
    gone = asyncio.create_task(rig.post(session, {"messages": [{"role": "user", "content": "later"}]}))
    async with asyncio.timeout(10):
        while not rig.proxy.controller.waiting:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    gone.cancel()
    async with asyncio.timeout(10):
        while rig.proxy.pipeline.attempts.total:
            await asyncio.sleep(0.01)
    made = await counted(rig, "dressage_phase_seconds")
    assert made["phase_seconds_sum", "paused"] >= waited + 0.1, "also of one that gave up"
    assert made["phase_seconds_count", "engine"] == 3


async def test_a_gate_that_is_open_is_no_pause_however_slow_the_machine_is(rig, monkeypatch):
    passed = rig.proxy.controller.enter

    async def slowly(*args, **more):
        await asyncio.sleep(0.05)
        return await passed(*args, **more)

    monkeypatch.setattr(rig.proxy.controller, "enter", slowly)
    await rig.chat(await rig.open(), "hi")
    assert ("phase_seconds_count", "paused") not in await counted(rig, "dressage_phase_seconds")


def test_the_time_of_the_engines_is_without_that_of_pauses():
    metrics = Metrics()
    with metrics.sampling(lambda: 100.0):
        pass
    value = metrics.registry.get_sample_value
    assert value("dressage_phase_seconds_sum", {"phase": "engine"}) == 0.0
    assert value("dressage_phase_seconds_sum", {"phase": "paused"}) == 100.0


async def test_an_end_that_a_restart_publishes_is_counted_there(make_rig):
    rig = await make_rig()
    session = await rig.open()
    await rig.chat(session, "hi")
    rig.store.append(
        session, final_to_record(Final(1, FailureClass.COMPLETED, {}))
    )  # and here the process was killed
    assert ("trained_tokens_total",) not in await counted(rig)
    again = await make_rig(store=rig.store, engines=rig.proxy.engines.urls)
    final = again.proxy.sessions.find(session).final
    made = await counted(again)
    assert made["trained_tokens_total",] == final.trained_tokens > 0
    once_more = await make_rig(store=rig.store, engines=rig.proxy.engines.urls)
    assert ("trained_tokens_total",) not in await counted(once_more), "that was before"


@pytest.mark.parametrize("dialect", ["chat/completions", "responses", "messages"])
async def test_a_stream_that_ends_with_an_error_counts_as_the_error(make_rig, dialect):
    rig = await make_rig(keepalive_s=0.02, engine_attempts=1)
    rig.engine.slow_s = 0.3
    session = await rig.open()
    body = {"model": "m", "stream": True, "max_tokens": 9, **HI}
    if dialect == "responses":
        body = {"model": "m", "stream": True, "input": "hi"}
    await rig.http.post("/rollout/pause", json={"timeout_s": 0})
    rig.engine.inject(Fault.SERVER_ERROR)

    async def begun():
        async with rig.http.stream("POST", f"/s/{session}/v1/{dialect}", json=body) as reply:
            assert reply.status_code == 200
            pieces = reply.aiter_bytes()
            assert await anext(pieces)
            await rig.http.post("/rollout/resume", json={"version": 1})
            return b"".join([piece async for piece in pieces])

    assert b"error" in await begun()
    made = await counted(rig, "dressage_requests_total")
    assert [(key[2], value) for key, value in made.items()] == [("503", 1.0)]


async def test_metrics_of_a_client_that_closed_its_stream_are_499(make_rig):
    rig = await make_rig(keepalive_s=0.02)
    rig.engine.hold_after = 1
    session = await rig.open()
    async with httpx.AsyncClient(base_url=rig.url) as http:
        body = {"model": "m", "stream": True, **HI}
        async with http.stream("POST", f"/s/{session}/v1/chat/completions", json=body) as reply:
            await anext(reply.aiter_bytes())
    async with asyncio.timeout(20):
        while ("requests_total", "chat", "499") not in await counted(rig):
            await asyncio.sleep(0.01)
