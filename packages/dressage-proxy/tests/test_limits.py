"""Ceilings: replies in the making, idle sessions, switches of weight versions, and the end of the process."""

import asyncio
from itertools import pairwise

import httpx
import numpy as np
import pytest
from dressage_proxy import GoneError
from dressage_proxy.errors import VersionLimitError
from dressage_proxy.versions import VersionBudget
from dressage_segments import InvalidFieldError
from hypothesis import given
from hypothesis import strategies as st

HI = {"messages": [{"role": "user", "content": "hi"}]}


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def test_one_reply_more_than_is_admitted_is_refused_with_retry_after_in_the_dialects_shape(make_rig):
    rig = await make_rig(max_in_flight=1)
    rig.engine.hold_after = 1
    session, other = await rig.open(), await rig.open()
    first = asyncio.create_task(rig.post(session, HI))
    await rig.engine.until_running(1)
    refused: httpx.Response = await rig.post(other, HI)
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["code"] == "overloaded"
    joined = asyncio.create_task(rig.post(session, HI))  # a retry of what is in the making is nothing more
    await until(lambda: any(made.waiters == 2 for made in rig.proxy.pipeline.attempts.joinable.values()))
    await rig.engine.release()
    assert (await first).json()["choices"] == (await joined).json()["choices"]
    assert (await rig.post(other, HI)).status_code == 200


async def test_a_draining_proxy_ends_what_it_began_and_begins_nothing(make_rig):
    rig = await make_rig(drain_s=5)
    rig.engine.hold_after = 1
    session, other = await rig.open(), await rig.open()
    first = asyncio.create_task(rig.post(session, HI))
    await rig.engine.until_running(1)
    drained = asyncio.create_task(rig.proxy.drain())
    await asyncio.sleep(0)
    refused = await rig.post(other, HI)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    ready = await rig.http.get("/ready")
    assert (ready.status_code, ready.json()["draining"]) == (503, True)
    assert not drained.done()
    await rig.engine.release()
    assert (await first).status_code == 200
    await drained


async def test_what_outlasts_the_drain_is_aborted_recorded_and_told_to_come_again(make_rig):
    rig = await make_rig(drain_s=0.05)
    rig.engine.hold_after = 1
    session = await rig.open()
    calls = [asyncio.create_task(rig.post(session, HI)) for _ in range(2)]  # one of them a retry
    await until(lambda: any(made.waiters == 2 for made in rig.proxy.pipeline.attempts.joinable.values()))
    await rig.engine.until_running(1)
    await rig.proxy.drain()
    for refused in await asyncio.gather(*calls):
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["error"]["code"] == "draining"
    trajectory = await rig.end(session)
    assert (trajectory.sampled_tokens, trajectory.lost_tokens) == (1, {"undelivered": 1})


async def test_an_idle_session_expires_into_the_store_and_is_never_made_again(make_rig):
    rig = await make_rig(idle_timeout_s=100)
    session = await rig.open()
    await rig.chat(session, "hi")
    assert await rig.proxy.sessions.expire() == 0
    rig.proxy.sessions.find(session).touched -= 101
    assert await rig.proxy.sessions.expire() == 1
    assert rig.store.pending() == [session]
    trajectory = rig.store.read(session)
    assert trajectory.failure_class == "timeout"
    assert trajectory.lost_tokens == {"timeout": 9}
    refused = await rig.post(session, HI)
    assert refused.status_code == 410
    assert refused.json()["error"]["code"] == "session_expired"
    final = await rig.http.post(f"/sessions/{session}/finalize", json={"outcome": {"reward": 1}})
    assert final.json()["lost_tokens"] == {"timeout": 9}, "what was published stays as it is"
    assert "dressage_expired_sessions_total 1.0" in (await rig.http.get("/metrics")).text


async def test_an_idle_session_that_cannot_be_stored_keeps_no_other_from_it(make_rig, monkeypatch):
    rig = await make_rig(idle_timeout_s=100)
    bad, good = await rig.open(), await rig.open()
    put = rig.store.put

    def full(trajectory):
        if trajectory.session_id == bad:
            raise InvalidFieldError("segment", "is broken")
        return put(trajectory)

    monkeypatch.setattr(rig.store, "put", full)
    for session in (bad, good):
        rig.proxy.sessions.find(session).touched -= 101
    assert await rig.proxy.sessions.expire() == 1
    assert rig.store.pending() == [good]
    monkeypatch.undo()
    assert await rig.proxy.sessions.expire() == 1
    assert sorted(rig.store.pending()) == sorted([bad, good])


async def test_a_session_that_counts_tokens_is_not_idle(make_rig):
    rig = await make_rig(idle_timeout_s=100)
    session = await rig.open()
    rig.proxy.sessions.find(session).touched -= 101
    reply = await rig.http.post(f"/s/{session}/v1/messages/count_tokens", json={"model": "m", **HI})
    assert reply.status_code == 200
    assert await rig.proxy.sessions.expire() == 0


async def test_an_expired_session_is_expired_after_a_restart_too(make_rig):
    rig = await make_rig(idle_timeout_s=0.1)
    session = await rig.open()
    await until(lambda: rig.store.pending() == [session])
    again = await make_rig(store=rig.store, engines=rig.proxy.engines.urls)
    with pytest.raises(GoneError, match="expired"):
        again.proxy.sessions.live(session)


async def test_a_session_with_a_reply_in_the_making_is_not_idle(make_rig):
    rig = await make_rig(idle_timeout_s=100)
    rig.engine.hold_after = 1
    session = await rig.open()
    first = asyncio.create_task(rig.post(session, HI))
    await rig.engine.until_running(1)
    rig.proxy.sessions.find(session).touched -= 101
    assert await rig.proxy.sessions.expire() == 0
    await rig.engine.release()
    assert (await first).status_code == 200
    assert await rig.proxy.sessions.expire() == 0, "its end counts as a use"


async def test_a_call_that_waited_in_a_pause_counts_as_a_use_when_its_client_gives_up(make_rig):
    """It may have waited for longer than a session may be idle: its agent is about to ask again."""
    rig = await make_rig(idle_timeout_s=100)
    session = await rig.open()
    assert (await rig.http.post("/rollout/pause", json={"timeout_s": 1})).json()["quiesced"]
    waiting = asyncio.create_task(rig.post(session, HI))
    await until(lambda: rig.proxy.controller.waiting == 1)
    rig.proxy.sessions.find(session).touched -= 101
    waiting.cancel()
    await until(lambda: rig.proxy.controller.waiting == 0)
    await until(lambda: not rig.proxy.pipeline.attempts.of(session))
    assert await rig.proxy.sessions.expire() == 0


async def test_others_are_answered_while_many_sessions_expire(make_rig):
    rig = await make_rig(idle_timeout_s=100)
    sessions = [rig.proxy.sessions.find(await rig.open()) for _ in range(20)]
    gone = sessions[-1]
    for session in sessions:
        session.touched -= 101
    expiring = asyncio.create_task(rig.proxy.sessions.expire())
    while not rig.store.pending():
        await asyncio.sleep(0)
    assert len(rig.store.pending()) < 10
    await rig.proxy.sessions.delete(gone.id)
    assert await expiring == 19
    assert gone.id not in rig.store.pending()


async def test_a_session_may_lower_its_idle_time_and_not_raise_it(make_rig):
    rig = await make_rig(idle_timeout_s=100)
    quick, slow = (
        await rig.open(limits={"idle_timeout_s": 50}),
        await rig.open(limits={"idle_timeout_s": 1e6}),
    )
    for session in (quick, slow):
        rig.proxy.sessions.find(session).touched -= 51
    assert await rig.proxy.sessions.expire() == 1
    assert rig.store.pending() == [quick]
    rig.proxy.sessions.find(slow).touched -= 101
    assert await rig.proxy.sessions.expire() == 1


@given(st.lists(st.lists(st.integers(-1, 3), max_size=6), max_size=6))
def test_switches_are_counted_over_the_known_versions_wherever_the_tokens_were_cut(pieces):
    budget = VersionBudget()
    for piece in pieces:
        budget.sees(np.array(piece, np.int32))
    known = [version for piece in pieces for version in piece if version >= 0]
    assert budget.used == sum(a != b for a, b in pairwise(known))


@pytest.mark.parametrize("version", [-1, 3])
def test_a_spent_budget_allows_the_version_it_has_and_the_unknown_one(version):
    budget = VersionBudget(limit=0, last=3)
    budget.check(version)
    with pytest.raises(VersionLimitError):
        budget.check(4)


async def resumed(rig, version):
    rig.engine.weight_version = str(version)
    await rig.http.post("/rollout/resume", json={"version": version})


async def test_a_turn_beyond_the_limit_of_version_switches_is_refused(make_rig):
    rig = await make_rig(max_version_switches=1)
    await resumed(rig, 1)
    session = await rig.open()
    said = ["hi", (await rig.chat(session, "hi")).choices[0].message.model_dump(exclude_none=True)]
    await resumed(rig, 2)
    reply = await rig.chat(session, *said, "on")
    said += ["on", reply.choices[0].message.model_dump(exclude_none=True)]
    await resumed(rig, 3)
    messages = [{"role": "user", "content": m} if isinstance(m, str) else m for m in [*said, "more"]]
    refused = await rig.post(session, {"messages": messages})
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "version_limit_reached"
    assert (await rig.http.get("/rollout")).json()["in_flight"] == 0
    trajectory = await rig.end(session)
    assert set(trajectory.segments[0].version.tolist()) == {-1, 1, 2}


async def test_a_session_without_switches_left_is_spared_by_a_pause_that_waits_for_it(make_rig):
    rig = await make_rig()
    await resumed(rig, 1)
    rig.engine.hold_after = 2
    spent, free = await rig.open(limits={"max_version_switches": 0}), await rig.open()
    turns = [asyncio.create_task(rig.post(session, HI)) for session in (spent, free)]
    await rig.engine.until_running(2)
    paused = await rig.http.post("/rollout/pause", json={"timeout_s": 0.5})
    assert paused.json() == {"quiesced": False, "preempted": 1, "waiting": 0, "spared": 1}
    await rig.engine.release()
    assert (await turns[0]).status_code == 200
    again = await rig.http.post("/rollout/pause", json={"timeout_s": 5})
    assert again.json() == {"quiesced": True, "preempted": 0, "waiting": 1}
    await resumed(rig, 2)
    assert (await turns[1]).status_code == 200
    assert set((await rig.end(spent)).segments[0].version.tolist()) == {-1, 1}


async def test_a_forced_pause_preempts_it_and_its_turn_is_refused_with_its_tokens_counted(make_rig):
    rig = await make_rig()
    await resumed(rig, 1)
    rig.engine.hold_after = 2
    session = await rig.open(limits={"max_version_switches": 0})
    turn = asyncio.create_task(rig.post(session, HI))
    await rig.engine.until_running(1)
    paused = await rig.http.post("/rollout/pause", json={"timeout_s": 5, "force": True})
    assert paused.json() == {"quiesced": True, "preempted": 1, "waiting": 0}
    await rig.engine.release()
    await resumed(rig, 2)
    assert (await turn).status_code == 409
    trajectory = await rig.end(session)
    assert (trajectory.trained_tokens, trajectory.lost_tokens) == (0, {"undelivered": 2})
