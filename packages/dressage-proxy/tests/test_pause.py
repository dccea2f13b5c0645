"""Pause and resume at token boundaries (DESIGN: "Pause and resume")."""

import asyncio

import pytest
from dressage_proxy.engine.scripted import Fault, ScriptedEngine


async def start(rig, session, *messages, **parameters):
    """A call that is in the engine."""
    before = rig.engine.running
    task = asyncio.create_task(rig.chat(session, *messages, **parameters))
    await rig.engine.until_running(before + 1)
    return task


async def pause(rig, **body):
    reply = await rig.http.post("/rollout/pause", json={"timeout_s": 5, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


async def resume(rig, version):
    reply = await rig.http.post("/rollout/resume", json={"version": version})
    assert reply.status_code == 200
    await rig.engine.release()


async def waiting(rig, count):
    """Until ``count`` turns wait at the gate."""
    while (await rig.http.get("/rollout")).json()["waiting"] != count:
        await asyncio.sleep(0)


async def test_a_reply_goes_on_from_its_partial_tokens_under_the_new_version(rig):
    rig.script("abcdefgh")
    rig.engine.weight_version = "3"
    rig.engine.hold_after = 4
    session = await rig.open()
    task = await start(rig, session, "hi")
    assert await pause(rig) == {"quiesced": True, "preempted": 1, "waiting": 0}
    assert rig.engine.running == 0
    rig.engine.weight_version = "4"
    rest = rig.ids("xyz")
    rig.script_raw([*rest, rig.codec.stop_token_ids[0]])
    await resume(rig, 4)
    reply = await task
    assert reply.choices[0].finish_reason == "stop"
    first, second = rig.engine.requests
    assert first.finish == "abort"
    assert len(first.output_ids) == 4
    assert second.input_ids == first.input_ids + first.output_ids
    (segment,) = (await rig.end(session)).segments
    sampled = segment.origin == 1
    assert segment.version[sampled].tolist() == [3] * 4 + [4] * (len(rest) + 1)
    assert segment.offset[sampled].tolist() == [0, 1, 2, 3, *range(len(rest) + 1)]
    assert segment.call[sampled].tolist() == [0] * 4 + [1] * (len(rest) + 1)
    assert segment.calls == (first.rid, second.rid)
    assert reply.usage.prompt_tokens == len(first.input_ids)
    assert reply.usage.completion_tokens == 4 + len(rest) + 1


async def test_max_tokens_counts_the_whole_reply_over_all_calls(rig):
    rig.script("abcdefghijklmnopqrstuvwxyz" * 3)
    session = await rig.open()
    rig.engine.hold_after = 3
    task = await start(rig, session, "hi", max_tokens=10)
    for version in (1, 2):
        await pause(rig)
        await rig.http.post("/rollout/resume", json={"version": version})
        await rig.engine.until_running(1)
    await rig.engine.release()
    reply = await task
    assert [r.sampling_params["max_new_tokens"] for r in rig.engine.requests] == [10, 7, 4]
    assert reply.usage.completion_tokens == 10
    assert reply.choices[0].finish_reason == "length"
    assert (await rig.end(session)).trained_tokens == 10


async def test_a_reply_that_the_pause_filled_to_its_limit_asks_the_engine_no_more(rig):
    rig.script("abcdefgh")
    rig.engine.hold_after = 4
    session = await rig.open()
    task = await start(rig, session, "hi", max_tokens=4 + 4)
    await pause(rig)
    rig.engine.hold_after = 4
    await rig.http.post("/rollout/resume", json={"version": 1})
    await rig.engine.until_running(1)
    await pause(rig)
    await resume(rig, 2)
    reply = await task
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 8
    assert len(rig.engine.requests) == 2


async def test_nothing_new_starts_until_resume(rig):
    await pause(rig)
    session = await rig.open()
    task = asyncio.create_task(rig.chat(session, "hi"))
    await waiting(rig, 1)
    assert rig.engine.requests == []
    assert (await pause(rig))["waiting"] == 1
    await resume(rig, 1)
    assert (await task).choices[0].finish_reason == "stop"


async def test_a_pause_of_one_session_leaves_the_others_running(rig):
    rig.engine.hold_after = 2
    one, other = await rig.open(), await rig.open()
    first = await start(rig, one, "hi")
    second = await start(rig, other, "hi")
    assert await pause(rig, session_id=one) == {"quiesced": True, "preempted": 1, "waiting": 0}
    assert rig.engine.running == 1
    assert (await rig.http.get("/rollout")).json()["state"] == "running"
    await rig.engine.release()
    assert (await second).choices[0].finish_reason == "stop"
    assert not first.done()
    await waiting(rig, 1)
    await resume(rig, 1)
    assert (await first).choices[0].finish_reason == "stop"
    assert len(rig.engine.aborts) == 1


async def test_a_call_that_finished_while_its_abort_was_under_way_is_finished(make_rig):
    class Slow(ScriptedEngine):
        """Its abort arrives when the call has just ended by itself."""

        async def __call__(self, scope, receive, send):
            if scope["path"] == "/abort_request":
                await self.release()
                await self.until_running(0)
            await super().__call__(scope, receive, send)

    rig = await make_rig(engine=Slow())
    rig.script("abcdefgh")
    rig.engine.hold_after = 3
    session = await rig.open()
    task = await start(rig, session, "hi")
    assert (await pause(rig))["quiesced"] is True
    reply = await task
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("abcdefgh", "stop")
    assert len(rig.engine.requests) == 1, "nothing is sampled again"
    assert (await rig.http.get("/rollout")).json()["state"] == "paused"
    trajectory = await rig.end(session)
    assert trajectory.lost_tokens == {}


async def test_an_engine_that_does_not_let_go_is_told_as_not_quiesced_in_time(make_rig):
    class Deaf(ScriptedEngine):
        deaf = True

        def _abort_request(self, payload):
            if not self.deaf:
                super()._abort_request(payload)

    engine = Deaf()
    engine._routes = {**engine._routes, "/abort_request": engine._abort_request}
    rig = await make_rig(engine=engine)
    rig.engine.hold_after = 2
    session = await rig.open()
    task = await start(rig, session, "hi")
    assert await pause(rig, timeout_s=0.1) == {"quiesced": False, "preempted": 1, "waiting": 0}
    engine.deaf = False
    assert (await pause(rig))["quiesced"] is True
    await resume(rig, 1)
    assert (await task).choices[0].finish_reason == "stop"


async def test_an_abort_that_overtakes_its_request_is_said_again(make_rig):
    rig = await make_rig()
    rig.engine.slow_s = 0.1
    rig.engine.inject(Fault.SLOW)
    rig.engine.hold_after = 2
    session = await rig.open()
    task = asyncio.create_task(rig.chat(session, "hi"))
    while not rig.engine.requests:
        await asyncio.sleep(0)
    assert await pause(rig) == {"quiesced": True, "preempted": 1, "waiting": 0}
    assert len(rig.engine.aborts) > 1
    await resume(rig, 1)
    assert (await task).choices[0].finish_reason == "stop"


async def test_pauses_and_resumes_may_be_repeated(rig):
    rig.engine.hold_after = 2
    session = await rig.open()
    task = await start(rig, session, "hi")
    assert (await pause(rig))["preempted"] == 1
    await waiting(rig, 1)
    for _ in range(3):
        assert await pause(rig) == {"quiesced": True, "preempted": 0, "waiting": 1}
    await resume(rig, 5)
    await resume(rig, 5)
    assert (await task).choices[0].finish_reason == "stop"
    assert len(rig.engine.requests) == 2, "each preempted call goes on once"


@pytest.mark.parametrize("hold", [0, 1, 5])
async def test_many_sessions_pause_together_and_all_go_on(rig, hold):
    rig.script("abcdefgh")
    rig.engine.hold_after = hold
    sessions = [await rig.open() for _ in range(12)]
    tasks = [asyncio.create_task(rig.chat(session, "hi")) for session in sessions]
    await rig.engine.until_running(12)
    assert await pause(rig) == {"quiesced": True, "preempted": 12, "waiting": 0}
    assert (await rig.http.get("/rollout")).json()["in_flight"] == 0
    await resume(rig, 1)
    for task, session in zip(tasks, sessions, strict=True):
        assert (await task).choices[0].finish_reason == "stop"
        trajectory = await rig.end(session)
        assert len(trajectory.segments) == 1
        assert trajectory.lost_tokens == {}


async def test_pauses_at_any_moment_lose_no_token(rig):
    """Property: whatever pauses do to replies on their way, each is whole and accounted for."""
    rig.engine.delay_s = 0.02  # a reply takes longer than a pause, on a busy machine too
    sessions = [await rig.open() for _ in range(6)]

    async def talk(session):
        messages = []
        for turn in range(3):
            messages.append({"role": "user", "content": f"turn {turn}"})
            reply = await rig.chat(session, *messages, max_tokens=20)
            messages.append(reply.choices[0].message.model_dump(exclude_none=True))

    tasks = [asyncio.create_task(talk(session)) for session in sessions]
    version = 0
    while not all(task.done() for task in tasks):
        assert (await pause(rig))["quiesced"] is True
        assert rig.engine.running == 0
        version += 1
        rig.engine.weight_version = str(version)
        await resume(rig, version)
        await asyncio.sleep(3 * rig.engine.delay_s)  # so that a token comes between two pauses
    await asyncio.gather(*tasks)
    assert any(request.finish == "abort" for request in rig.engine.requests)
    sampled = 0
    for session in sessions:
        trajectory = await rig.end(session)
        assert trajectory.lost_tokens == {}
        assert len(trajectory.segments) == 1
        versions = trajectory.segments[0].version
        assert (versions[versions >= 0][1:] >= versions[versions >= 0][:-1]).all()
        sampled += trajectory.sampled_tokens
    assert sampled == sum(len(request.output_ids) for request in rig.engine.requests)


async def test_a_client_that_leaves_while_its_reply_waits_at_the_gate_frees_its_place(rig):
    rig.script("abcdefgh")
    rig.engine.hold_after = 3
    session = await rig.open()
    task = await start(rig, session, "hi")
    await pause(rig)
    await waiting(rig, 1)
    task.cancel()
    await waiting(rig, 0)
    await resume(rig, 1)
    trajectory = await rig.end(session)
    assert trajectory.lost_tokens == {"undelivered": 3}
    assert len(rig.engine.requests) == 1
