"""Defects once found between the proxy and its engines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections import Counter
from typing import Any

import httpx
import numpy as np
import pytest
from dressage_proxy import generation
from dressage_proxy.engine.choose import Step
from dressage_proxy.engine.pool import EnginePool, PoolOptions
from dressage_proxy.engine.scripted import Fault, Output, ScriptedEngine
from dressage_segments import LossCause, Mark, tree_from_records

URLS = ("http://10.0.0.1:1", "http://10.0.0.2:1", "http://10.0.0.3:1")


async def split(rig: Any, first: str, then: str, matched: str | None = None, **body: Any) -> Any:
    """A reply whose engine call is aborted after ``first`` by a pause, and goes on with ``then``."""
    end = [*rig.ids(then)]
    stop = rig.codec.stop_token_ids[0]
    rig.script_raw([*rig.ids(first), 64], Output([*end, stop] if matched is None else end, matched=matched))
    rig.engine.hold_after = len(rig.ids(first))
    session = await rig.open()
    call = asyncio.create_task(rig.chat(session, "hi", **body))
    await rig.engine.until_running(1)
    paused = await rig.http.post("/rollout/pause", json={"timeout_s": 5})
    assert paused.json()["quiesced"]
    rig.engine.hold_after = None
    await rig.http.post("/rollout/resume", json={"version": 1})
    return session, await call


@pytest.mark.parametrize("noticed", ["END", None])
async def test_a_stop_string_that_a_pause_split_ends_the_reply(rig: Any, noticed: str | None) -> None:
    """The engine of the second call looks at its own output alone, so it may notice nothing."""
    session, reply = await split(rig, "one E", "ND more", noticed, stop=["END"])
    choice = reply.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("one ", "stop")
    kept = len(rig.ids("one E")) + len(rig.ids("ND"))
    assert reply.usage.completion_tokens == kept
    trajectory = await rig.end(session)
    past = sum(len(call.output_ids) for call in rig.engine.requests) - kept
    assert past > 0
    assert trajectory.lost_tokens == {LossCause.PAST_STOP: past}
    assert trajectory.trained_tokens == kept
    assert rig.codec.decode(trajectory.segments[0].token_ids).endswith("one END")


async def test_what_looks_like_a_stop_string_after_the_pause_alone_is_the_engines_matter(rig: Any) -> None:
    session, reply = await split(rig, "one E", "VE is", None, stop=["END"])
    assert reply.choices[0].message.content == "one EVE is"
    assert (await rig.end(session)).lost_tokens == {}


async def test_ids_past_a_stop_string_are_dropped_and_counted(rig: Any) -> None:
    rig.script_raw(Output(rig.ids("fine END and more"), matched="END"))
    session = await rig.open()
    reply = await rig.chat(session, "hi", stop="END")
    assert reply.choices[0].message.content == "fine "
    trajectory = await rig.end(session)
    sampled = len(rig.engine.requests[0].output_ids)
    assert trajectory.sampled_tokens == sampled
    assert trajectory.lost_tokens == {LossCause.PAST_STOP: sampled - reply.usage.completion_tokens}


async def test_an_aborted_turn_and_its_mark_are_one_record(rig: Any) -> None:
    """No crash can keep the partial reply and lose that nobody saw it."""
    rig.engine.hold_after = 2
    session = await rig.open()
    call = asyncio.create_task(rig.chat(session, "hi"))
    await rig.engine.until_running(1)
    call.cancel()
    await rig.engine.until_running(0)
    await rig.end(session)
    records = list(rig.store.records(session))
    assert [record.kind for record in records] == ["open", "turn", "final"]
    for until in (2, 3):
        tree = tree_from_records(records[:until])
        assert len(tree.turn(0).output_ids) == 2
        assert tree.marked(0) is Mark.UNDELIVERED


async def test_a_try_whose_connection_broke_is_aborted_and_the_next_has_its_own_rid(rig: Any) -> None:
    rig.engine.inject(Fault.DROP)
    session = await rig.open()
    await rig.chat(session, "hi")
    first, second = (call.rid for call in rig.engine.requests)
    assert first != second
    assert rig.engine.aborts == [{"rid": first}]
    (call,) = rig.tree(session).turn(0).calls
    assert call.call_id == second
    await rig.end(session)


async def test_a_pause_does_not_wait_for_a_back_off(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    backing_off = asyncio.Event()

    def forever(attempt: int) -> float:
        backing_off.set()
        return 3600.0

    monkeypatch.setattr(generation, "_backoff", forever)
    rig.engine.inject(Fault.UNAVAILABLE)
    session = await rig.open()
    call = asyncio.create_task(rig.chat(session, "hi"))
    await backing_off.wait()
    reply = await rig.http.post("/rollout/pause", json={"timeout_s": 5})
    assert reply.json() == {"quiesced": True, "preempted": 0, "waiting": 0}
    assert (await rig.http.get("/rollout")).json()["in_flight"] == 0
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call


class Unwilling(ScriptedEngine):
    """Wishes once to be left alone for a day."""

    refused = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.refused or scope["path"] != "/generate":
            await super().__call__(scope, receive, send)
            return
        self.refused = True
        headers = [(b"retry-after", b"86400"), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 429, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


async def test_an_engine_that_wishes_for_a_day_off_does_not_get_it(
    make_rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "_WISH_CAP_S", 0.05)
    rig = await make_rig(engine=Unwilling())
    reply = await asyncio.wait_for(rig.chat(await rig.open(), "hi"), 30)
    assert reply.choices[0].finish_reason == "stop"
    assert rig.engine.refused


async def test_a_try_after_a_back_off_passes_the_gate_again(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[asyncio.Task[Any]] = []

    def pausing(attempt: int) -> float:
        pauses.append(asyncio.create_task(rig.proxy.controller.pause(None, 5)))
        return 0.01

    monkeypatch.setattr(generation, "_backoff", pausing)
    rig.engine.inject(Fault.UNAVAILABLE)
    session = await rig.open()
    call = asyncio.create_task(rig.chat(session, "hi"))
    async with asyncio.timeout(30):
        while rig.proxy.controller.waiting != 1:
            await asyncio.sleep(0)
    assert (await pauses[0]).quiesced
    assert len(rig.engine.requests) == 1
    await rig.http.post("/rollout/resume", json={"version": 3})
    await call
    assert len(rig.engine.requests) == 2


class Generous(ScriptedEngine):
    """It gives more than it was asked for."""

    def _accept(self, payload: Any) -> Any:
        call = super()._accept(payload)
        call.sampling_params = {**call.sampling_params, "max_new_tokens": 64}
        return call


async def test_more_tokens_than_were_asked_for_are_kept_untrained(make_rig: Any) -> None:
    rig = await make_rig(engine=Generous())
    session = await rig.open()
    await rig.chat(session, "hi", max_tokens=3)
    trajectory = await rig.end(session)
    assert trajectory.trained_tokens == 0
    assert trajectory.lost_tokens == {LossCause.MISALIGNED: len(rig.engine.requests[0].output_ids)}


async def chosen(urls: tuple[str, ...], sessions: int) -> list[str]:
    async with EnginePool(PoolOptions(urls)) as pool:
        steps = [Step(f"{number:032x}", 1, 1) for number in range(sessions)]
        return [pool.place(step, np.zeros(1, np.int32)).url for step in steps]


async def test_a_session_keeps_its_engine_whatever_the_order_of_the_list() -> None:
    first = await chosen(URLS, 300)
    assert await chosen(URLS[::-1], 300) == first
    assert min(Counter(first).values()) > 60
    fewer = await chosen(URLS[:2], 300)
    assert all(old == new for old, new in zip(first, fewer, strict=True) if old != URLS[2])


def test_a_session_keeps_its_engine_over_a_restart() -> None:
    program = (
        "from dressage_proxy.engine.choose import Book, Step, Sticky\n"
        f"book = Book(Sticky())\nfor url in {URLS!r}:\n    book.add(url)\n"
        f"print([book.place(Step(str(n), 1, 1), {URLS!r}).url for n in range(20)])"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1


async def test_an_unreachable_engine_is_passed_over(make_rig: Any) -> None:
    with socket.socket() as taken:  # bound, not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{taken.getsockname()[1]}"
        live = await make_rig()
        urls = (dead, *live.proxy.engines.urls)
        rig = await make_rig(engines=urls, store=live.store)
        for _ in range(6):
            session = await rig.open()
            await rig.chat(session, "hi")
        engines = {
            turn.calls[0].engine
            for session in rig.store.sessions()
            for turn in tree_from_records(rig.store.records(session)).turns
        }
    assert engines == {urls[1]}


async def test_an_engine_that_refuses_is_an_error_at_once_in_the_dialects_shape(rig: Any) -> None:
    rig.engine.inject(Fault.BAD_REQUEST)
    session = await rig.open()
    reply: httpx.Response = await rig.post(session, {"messages": [{"role": "user", "content": "a"}]})
    assert reply.status_code == 400
    assert json.loads(reply.content)["error"]["code"] == "refused_by_engine"
    assert len(rig.engine.requests) == 1
