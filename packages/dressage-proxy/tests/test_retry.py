"""The same request again: joined while in flight, a sibling afterwards; and clients that leave."""

import asyncio

import openai
import pytest
from dressage_proxy.engine.scripted import Fault


def body(*texts, **more):
    return {"messages": [{"role": "user", "content": text} for text in texts], **more}


async def gone(task):
    """Cancel a client's request: its socket closes."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def settled(rig, session):
    """Until nothing of the session is in the making."""
    while (await rig.http.get(f"/sessions/{session}")).json()["in_flight"]:
        await asyncio.sleep(0)


async def test_a_retry_joins_the_reply_that_is_being_made(rig):
    rig.engine.hold_after = 2
    session = await rig.open()
    tasks = [asyncio.create_task(rig.chat(session, "hi"))]
    await rig.engine.until_running(1)
    tasks += [asyncio.create_task(rig.chat(session, "hi", stream=stream)) for stream in (False, True)]
    await waiters(rig, 3)
    await rig.engine.release()
    first, second, stream = await asyncio.gather(*tasks)
    text = first.choices[0].message.content
    assert second.choices[0].message.content == text
    streamed = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    assert "".join(streamed) == text
    assert len(rig.engine.requests) == 1
    assert (await rig.end(session)).lost_tokens == {}


async def waiters(rig, count):
    """Until ``count`` clients wait for the one reply in the making."""
    attempts = rig.proxy.pipeline.attempts.joinable
    while sum(attempt.waiters for attempt in attempts.values()) != count:
        await asyncio.sleep(0)


async def test_the_same_request_after_its_answer_is_a_sibling_and_the_last_one_lives(rig):
    rig.script("first", "second", "third")
    session = await rig.open()
    assert (await rig.chat(session, "hi")).choices[0].message.content == "first"
    second = (await rig.chat(session, "hi")).choices[0].message
    assert second.content == "second"
    await rig.chat(session, "hi", second.model_dump(exclude_none=True), "go on")
    assert [turn.parent for turn in rig.tree(session).turns] == [-1, -1, 1]
    trajectory = await rig.end(session)
    (segment,) = trajectory.segments
    assert trajectory.lost_tokens == {"retry": len(rig.engine.requests[0].output_ids)}
    assert segment.calls == tuple(request.rid for request in rig.engine.requests[1:])


async def test_the_conversation_may_go_on_from_either_sibling(rig):
    rig.script("first", "second", "third", "fourth")
    session = await rig.open()
    replies = [(await rig.chat(session, "hi")).choices[0].message for _ in range(2)]
    for reply in replies:
        await rig.chat(session, "hi", reply.model_dump(exclude_none=True), "go on")
    sent = rig.engine.requests
    for first, later in ((sent[0], sent[2]), (sent[1], sent[3])):
        whole = first.input_ids + first.output_ids
        assert later.input_ids[: len(whole)] == whole
    trajectory = await rig.end(session)
    assert len(trajectory.segments) == 2
    assert trajectory.lost_tokens == {}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_aborts_the_engine_and_its_turn_is_undelivered(rig, stream):
    rig.script("abcdefgh")
    rig.engine.hold_after = 2
    session = await rig.open()
    task = asyncio.create_task(rig.post(session, body("hi", stream=stream)))
    await rig.engine.until_running(1)
    await gone(task)
    await rig.engine.until_running(0)
    await settled(rig, session)
    assert [abort["rid"] for abort in rig.engine.aborts][:1] == [rig.engine.requests[0].rid]
    await rig.engine.release()
    assert (await rig.chat(session, "hi")).choices[0].message.content == "abcdefgh"
    assert (await rig.http.get("/rollout")).json()["in_flight"] == 0
    trajectory = await rig.end(session)
    assert trajectory.lost_tokens == {"undelivered": 2}
    (segment,) = trajectory.segments
    assert segment.calls == (rig.engine.requests[1].rid,)
    metrics = (await rig.http.get("/metrics")).text
    assert "dressage_undelivered_turns_total 1.0" in metrics


async def test_a_retry_while_the_first_attempt_is_being_aborted_starts_afresh(rig):
    """The abort takes its time: the retry is neither refused nor given the dead reply."""
    rig.script("abcdefgh")
    rig.engine.hold_after = 2
    session = await rig.open()
    slow = asyncio.Event()
    abort = rig.proxy.engines.abort

    async def held(engine, rid):
        await slow.wait()
        return await abort(engine, rid)

    rig.proxy.pipeline.generator._engines.abort = held
    first = asyncio.create_task(rig.post(session, body("hi")))
    await rig.engine.until_running(1)
    await gone(first)
    while not all(attempt.abandoned for attempt in rig.proxy.pipeline.attempts.joinable.values()):
        await asyncio.sleep(0)
    second = asyncio.create_task(rig.chat(session, "hi"))
    await rig.engine.until_running(2)
    rig.engine.hold_after = None
    slow.set()
    await rig.engine.release()
    assert (await second).choices[0].message.content == "abcdefgh"
    await settled(rig, session)
    trajectory = await rig.end(session)
    assert trajectory.sampled_tokens == sum(len(request.output_ids) for request in rig.engine.requests)
    assert trajectory.trained_tokens == len(rig.engine.requests[1].output_ids)


async def test_one_client_of_several_that_leaves_disturbs_nobody(rig):
    rig.engine.hold_after = 2
    session = await rig.open()
    tasks = [asyncio.create_task(rig.post(session, body("hi"))) for _ in range(3)]
    await rig.engine.until_running(1)
    await waiters(rig, 3)
    await gone(tasks[0])
    await waiters(rig, 2)
    assert rig.engine.running == 1
    await rig.engine.release()
    replies = await asyncio.gather(*tasks[1:])
    assert [reply.status_code for reply in replies] == [200, 200]
    assert rig.engine.aborts == []
    assert (await rig.end(session)).lost_tokens == {}


async def test_when_the_last_of_several_clients_leaves_the_engine_is_aborted(rig):
    rig.engine.hold_after = 2
    session = await rig.open()
    tasks = [asyncio.create_task(rig.post(session, body("hi"))) for _ in range(3)]
    await rig.engine.until_running(1)
    await waiters(rig, 3)
    for task in tasks:
        await gone(task)
    await rig.engine.until_running(0)
    await settled(rig, session)
    assert (await rig.end(session)).lost_tokens == {"undelivered": 2}


async def test_a_client_that_leaves_before_its_request_is_whole_asks_nothing_of_the_engine(rig):
    session = await rig.open()
    host, port = rig.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /s/{session}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n"
    writer.write(head.encode() + b'{"messages": [')
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await rig.chat(session, "hi")).choices
    assert len(rig.engine.requests) == 1


async def test_a_client_that_leaves_during_the_engines_retries_stops_them(make_rig):
    rig = await make_rig(engine_attempts=50)
    rig.engine.inject(*[Fault.UNAVAILABLE] * 50)
    session = await rig.open()
    task = asyncio.create_task(rig.post(session, body("hi")))
    while len(rig.engine.requests) < 2:
        await asyncio.sleep(0.01)
    await gone(task)
    await settled(rig, session)
    tried = len(rig.engine.requests)
    assert (await rig.http.get("/rollout")).json()["in_flight"] == 0
    await asyncio.sleep(0.3)
    assert len(rig.engine.requests) == tried, "nothing goes on for a client that is gone"


async def test_other_sampling_parameters_or_tools_make_another_request(rig, shell):
    rig.engine.hold_after = 1
    session = await rig.open()
    variants = [{}, {"temperature": 0.5}, {"max_tokens": 7}, {"tools": [shell]}]
    tasks = [asyncio.create_task(rig.chat(session, "hi", **variant)) for variant in variants]
    await rig.engine.until_running(4)
    await rig.engine.release()
    await asyncio.gather(*tasks)
    assert len(rig.engine.requests) == 4


async def test_parallel_branches_of_one_session_do_not_wait_for_each_other(rig):
    rig.engine.hold_after = 1
    session = await rig.open()
    first = (await started(rig, session, "trunk")).choices[0].message.model_dump(exclude_none=True)
    rig.engine.hold_after = 1
    tasks = [asyncio.create_task(rig.chat(session, "trunk", first, f"branch {n}")) for n in range(4)]
    await rig.engine.until_running(4)
    await rig.engine.release()
    await asyncio.gather(*tasks)
    assert [turn.parent for turn in rig.tree(session).turns] == [-1, 0, 0, 0, 0]
    trajectory = await rig.end(session)
    assert len(trajectory.segments) == 4
    assert trajectory.lost_tokens == {}
    assert sum(segment.trained_tokens for segment in trajectory.segments) == trajectory.sampled_tokens


async def started(rig, session, *messages):
    task = asyncio.create_task(rig.chat(session, *messages))
    await rig.engine.until_running(1)
    await rig.engine.release()
    return await task


async def test_a_failure_is_told_to_every_client_that_waits(make_rig):
    rig = await make_rig(engine_attempts=1)
    rig.engine.inject(Fault.SLOW)
    rig.engine.policy = lambda *_: "no ids at all"
    session = await rig.open()
    tasks = [asyncio.create_task(rig.chat(session, "hi")) for _ in range(3)]
    await waiters(rig, 3)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, openai.InternalServerError) for result in results)
    assert rig.proxy.pipeline.attempts.joinable == {}


async def test_slots_return_to_zero_after_a_storm_of_leaving_clients(rig):
    rig.engine.delay_s = 0.001
    sessions = [await rig.open() for _ in range(5)]
    tasks = []
    for round_ in range(8):
        for session in sessions:
            tasks.append(asyncio.create_task(rig.post(session, body(f"round {round_ % 3}"))))
        await asyncio.sleep(0.004)
        for task in tasks[:: 2 + round_ % 2]:
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for session in sessions:
        await settled(rig, session)
    await rig.engine.until_running(0)
    state = (await rig.http.get("/rollout")).json()
    assert (state["in_flight"], state["waiting"]) == (0, 0)
    assert rig.proxy.pipeline.attempts.joinable == rig.proxy.pipeline.attempts.running == {}
    sampled = 0
    for session in sessions:
        sampled += (await rig.end(session)).sampled_tokens
    assert sampled == sum(len(request.output_ids) for request in rig.engine.requests if request.finish)
