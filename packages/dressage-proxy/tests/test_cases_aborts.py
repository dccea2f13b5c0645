"""Public failure cases about aborts, pauses, versions, truncation and who a session belongs to."""

import asyncio
import json

import openai
import pytest
from dressage_proxy.engine.scripted import Fault, ScriptedEngine


def echo(reply):
    return reply.choices[0].message.model_dump(exclude_none=True)


def body(text, **more):
    return {"messages": [{"role": "user", "content": text}], **more}


async def settled(rig, session):
    """Until nothing of the session is in the making."""
    while (await rig.http.get(f"/sessions/{session}")).json()["in_flight"]:
        await asyncio.sleep(0)


TRUNCATED = {
    "inside the second call": ('<tool_call>\n{"name": "shell", "arguments": {"command": "rm -rf bu', 1),
    "at valid JSON": ('<tool_call>\n{"name": "shell", "arguments": {"command": "a"', 1),
    "before the closing tag": ('<tool_call>\n{"name": "shell", "arguments": {"command": "a"}}', 1),
    "inside a tag": ("<tool_call>", 1),
    "after a whole call": ('<tool_call>\n{"name": "shell", "arguments": {"command": "b"}}\n</tool_call>', 2),
}


async def test_c26_a_turn_cut_by_length_says_length_and_hands_out_whole_calls_alone(rig, shell, call):
    for name, (tail, whole) in TRUNCATED.items():
        ids = rig.ids(call(command="f") + "\n" + tail)
        rig.script_raw([*ids, 64, 64, 64])
        for stream in (False, True):
            session = await rig.open()
            reply = await rig.chat(session, "go", tools=[shell], max_tokens=len(ids), stream=stream)
            if stream:
                choices = [chunk.choices[0] async for chunk in reply]
                finish = choices[-1].finish_reason
                calls = [t for c in choices for t in c.delta.tool_calls or [] if t.id]
            else:
                finish = reply.choices[0].finish_reason
                calls = reply.choices[0].message.tool_calls
            assert finish == "length", name
            assert len(calls) == whole, name
            (segment,) = (await rig.end(session, failure_class="truncated")).segments
            assert segment.finish_reason == "length"
            assert segment.token_ids[segment.origin == 1].tolist() == ids, "recorded in full"
            assert segment.failure_class == "truncated"


async def test_c26_a_whole_turn_with_calls_says_tool_calls_and_a_cut_one_goes_on(rig, shell, call):
    rig.script(call(command="f"))
    session = await rig.open()
    assert (await rig.chat(session, "go", tools=[shell])).choices[0].finish_reason == "tool_calls"
    rig.script_raw(rig.ids("half an ans"))
    cut = await rig.chat(session, "other")
    assert cut.choices[0].finish_reason == "length"
    await rig.chat(session, "other", echo(cut), "on")
    one, two = rig.engine.requests[1:]
    whole = one.input_ids + one.output_ids
    assert two.input_ids[: len(whole)] == whole
    closing = two.input_ids[len(whole)]
    assert closing == rig.codec.stop_token_ids[0]
    segment = (await rig.end(session)).segments[1]
    assert segment.loss_mask[len(whole)] == 0, "the closing token was not sampled"


async def test_c34_a_client_that_goes_in_mid_stream_leaves_nothing_behind(rig):
    rig.script("x" * 49)
    rig.engine.hold_after = 2
    for stream in (True, False):
        session = await rig.open()
        task = asyncio.create_task(rig.post(session, body("hi", stream=stream)))
        await rig.engine.until_running(1)
        rid = rig.engine.requests[-1].rid
        task.cancel()
        await rig.engine.until_running(0)
        await settled(rig, session)
        assert {"rid": rid} in rig.engine.aborts
        retry = asyncio.create_task(rig.chat(session, "hi"))
        await rig.engine.until_running(1)
        await rig.engine.release()
        reply = await retry
        assert reply.choices[0].message.content == "x" * 49
        await rig.chat(session, "hi", echo(reply), "on")
        dead, live, later = rig.engine.requests[-3:]
        assert later.input_ids[: len(live.input_ids + live.output_ids)] == live.input_ids + live.output_ids
        trajectory = await rig.end(session)
        assert trajectory.lost_tokens == {"undelivered": 2}
        assert dead.rid not in trajectory.segments[0].calls
        state = (await rig.http.get("/rollout")).json()
        assert (state["in_flight"], rig.engine.running) == (0, 0)
        rig.script("x" * 49)
        rig.engine.hold_after = 2


ABORTS = {
    "ids and logprobs": (None, 3, {}),
    "ids without logprobs": (Fault.NO_LOGPROBS, 3, {"missing_logprobs": 3}),
    "nothing": (Fault.QUEUED_ABORT, 0, {}),
    "ids without a version": (Fault.NO_VERSION, 3, {"version_rule": 3}),
}


async def test_c35_every_shape_of_an_abort_is_kept_or_rerun_and_never_guessed(rig):
    for name, (fault, kept, lost) in ABORTS.items():
        rig.script("abcdef", "ghi")
        rig.engine.hold_after = 3
        if fault is not None:
            rig.engine.inject(fault)
        session = await rig.open()
        task = asyncio.create_task(rig.chat(session, "hi"))
        await rig.engine.until_running(1)
        if fault is not Fault.QUEUED_ABORT:
            await rig.http.post("/rollout/pause", json={"timeout_s": 5})
            await rig.http.post("/rollout/resume", json={"version": 0})
        await rig.engine.release()
        reply = await task
        one, two = rig.engine.requests[-2:]
        assert two.input_ids == one.input_ids + one.output_ids[:kept], name
        assert reply.choices[0].finish_reason == "stop"
        assert reply.usage.completion_tokens == kept + len(two.output_ids)
        trajectory = await rig.end(session)
        assert trajectory.lost_tokens == lost, name
        assert trajectory.trained_tokens == trajectory.sampled_tokens - sum(lost.values())
        assert [len(segment.calls) for segment in trajectory.segments] == [1 + (kept > 0)]


async def test_c37_tokens_carry_the_version_of_the_reply_and_never_of_now(rig):
    rig.engine.weight_version = "3"
    rig.engine.hold_after = 1
    session = await rig.open()
    await rig.http.post("/rollout/resume", json={"version": 3})
    task = asyncio.create_task(rig.chat(session, "hi"))
    await rig.engine.until_running(1)
    await rig.http.post("/rollout/resume", json={"version": 4})
    await rig.engine.release()
    await task
    (segment,) = (await rig.end(session)).segments
    assert set(segment.version[segment.origin == 1].tolist()) == {3}


async def test_c37_a_reply_without_a_version_has_that_of_its_dispatch(rig):
    rig.engine.weight_version = None
    rig.engine.hold_after = 1
    session = await rig.open()
    await rig.http.post("/rollout/resume", json={"version": 3})
    task = asyncio.create_task(rig.chat(session, "hi"))
    await rig.engine.until_running(1)
    await rig.http.post("/rollout/resume", json={"version": 4})
    await rig.engine.release()
    await task
    (segment,) = (await rig.end(session)).segments
    assert set(segment.version[segment.origin == 1].tolist()) == {3}


async def test_c37_default_and_absent_versions_are_unknown_and_never_current(rig):
    rig.engine.weight_version = None
    session = await rig.open()
    await rig.chat(session, "hi")
    trajectory = await rig.end(session)
    assert set(rig.tree(session).turn(0).versions.tolist()) == {-1}, "nobody announced a version"
    assert trajectory.lost_tokens == {"version_rule": trajectory.sampled_tokens}
    await rig.http.post("/rollout/resume", json={"version": 9})
    rig.engine.weight_version = "default"
    session = await rig.open()
    await rig.chat(session, "hi")
    trajectory = await rig.end(session)
    assert set(rig.tree(session).turn(0).versions.tolist()) == {-1}, "the engine says that it does not know"
    assert trajectory.lost_tokens == {"version_rule": trajectory.sampled_tokens}, "refused, not guessed"


async def test_c37_a_reply_over_two_versions_is_labelled_token_by_token(rig):
    rig.script_raw([64] * 4 + [65] * 6, [*[66] * 2, rig.codec.stop_token_ids[0]])
    rig.engine.weight_version = "3"
    rig.engine.hold_after = 4
    session = await rig.open()
    task = asyncio.create_task(rig.chat(session, "hi"))
    await rig.engine.until_running(1)
    await rig.http.post("/rollout/pause", json={"timeout_s": 5})
    rig.engine.weight_version = "4"
    await rig.http.post("/rollout/resume", json={"version": 4})
    await rig.engine.release()
    await task
    (segment,) = (await rig.end(session)).segments
    assert segment.version[segment.origin == 1].tolist() == [3, 3, 3, 3, 4, 4, 4]


async def test_c37_an_engine_that_went_on_over_an_update_tells_its_spans(make_rig):
    rig = await make_rig(engine=ScriptedEngine(spans=True, weight_version="3"))
    rig.script("abcdefgh")
    rig.engine.hold_after = 2
    session = await rig.open()
    task = asyncio.create_task(rig.chat(session, "hi"))
    await rig.engine.until_running(1)
    await rig.http.post(
        f"{rig.proxy.engines.urls[0]}/update_weight_version",
        json={"new_version": "4", "abort_all_requests": False},
    )
    await rig.engine.release()
    await task
    (segment,) = (await rig.end(session)).segments
    versions = segment.version[segment.origin == 1].tolist()
    assert versions[:3] == [3, 3, 4]
    assert set(versions[3:]) == {4}


async def test_c38_publishing_a_version_aborts_nothing_and_its_steps_may_be_repeated(make_rig):
    paths = []

    class Watched(ScriptedEngine):
        async def __call__(self, scope, receive, send):
            paths.append(scope["path"])
            await super().__call__(scope, receive, send)

    rig = await make_rig(engine=Watched())
    rig.engine.hold_after = 3
    sessions = [await rig.open() for _ in range(16)]
    tasks = [asyncio.create_task(rig.chat(session, "hi")) for session in sessions]
    await rig.engine.until_running(16)
    for _ in range(2):
        await rig.http.post("/rollout/resume", json={"version": 1})
    assert rig.engine.running == 16, "a label alone ends nothing"
    assert rig.engine.aborts == []
    for _ in range(2):
        paused = (await rig.http.post("/rollout/pause", json={"timeout_s": 5})).json()
        assert paused["quiesced"] is True
    await rig.engine.release()
    for _ in range(2):
        await rig.http.post("/rollout/resume", json={"version": 2})
    for task in tasks:
        assert (await task).choices[0].finish_reason == "stop"
    assert not any(abort.get("abort_all") for abort in rig.engine.aborts)
    assert {abort["rid"] for abort in rig.engine.aborts} == {r.rid for r in rig.engine.requests[:16]}
    assert len(rig.engine.requests) == 32, "each is resumed once"
    done = set(paths) - {"/model_info"}  # a look at the label, which changes nothing
    assert done == {"/generate", "/abort_request"}, "the engine's own pauses are the trainer's"


async def test_c47_parallel_rollouts_of_one_prompt_never_share_a_session(rig):
    sessions = await asyncio.gather(*(rig.open(instance_id="same", group_id="g") for _ in range(8)))
    assert len(set(sessions)) == 8
    replies = await asyncio.gather(*(rig.chat(session, "same prompt") for session in sessions))
    assert len(rig.engine.requests) == 8, "they are 8 samples, not one reply"
    rollouts = set()
    for session, reply in zip(sessions, replies, strict=True):
        trajectory = await rig.end(session)
        (segment,) = trajectory.segments
        text = rig.codec.decode(segment.token_ids[segment.origin == 1])
        assert text.removesuffix("<|im_end|>") == reply.choices[0].message.content
        rollouts.add(trajectory.rollout_id)
    assert len(rollouts) == 8


async def test_c47_a_session_is_bound_by_its_path_and_by_nothing_that_a_client_says(rig):
    session, other = await rig.open(), await rig.open()
    claims = {"x-session-id": other, "session_id": other, "x-claude-code-session-id": other}
    await rig.chat(session, "hi", extra_headers=claims, user=other, metadata={"session_id": other})
    assert (await rig.end(other)).segments == ()
    assert len((await rig.end(session)).segments) == 1


async def test_c47_no_id_and_a_finished_id_are_clear_4xx(rig):
    for path in ("/v1/chat/completions", "/s/v1/chat/completions", "/s//v1/chat/completions"):
        reply = await rig.http.post(path, json=body("hi"))
        assert 400 <= reply.status_code < 500
        assert reply.json()["error"]["message"]
    session = await rig.open()
    await rig.end(session)
    for path in (f"/s/{session}/v1/chat/completions", f"/s/{session.upper()}x/v1/chat/completions"):
        assert (await rig.http.post(path, json=body("hi"))).status_code in (404, 410)
    assert rig.engine.requests == []


async def stream_until(rig, session, enough):
    """Read a stream from a raw socket until ``enough`` of it came, then close the socket."""
    host, port = rig.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(body("hi", stream=True)).encode()
    head = f"POST /s/{session}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()
    got = b""
    while not enough(got):
        got += await reader.read(64)
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    "enough",
    [
        lambda got: b'"role":"assistant"' in got,
        lambda got: b'"content":"ab' in got,
        lambda got: b'"finish_reason":"stop"' in got,
        lambda got: b"[DONE]" in got,
    ],
    ids=["first event", "first text", "all but the last", "everything"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_c58_the_same_turn_after_a_broken_stream_has_one_live_answer(rig, enough, stream):
    rig.script("abcdef", "ghijkl", "mno")
    session = await rig.open()
    await stream_until(rig, session, enough)
    reply = await rig.chat(session, "hi", stream=stream)
    if stream:
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in reply])
    else:
        text = reply.choices[0].message.content
    assert text == "ghijkl"
    await rig.chat(session, "hi", {"role": "assistant", "content": text}, "on")
    dead, live, later = rig.engine.requests
    assert later.input_ids[: len(live.input_ids + live.output_ids)] == live.input_ids + live.output_ids
    trajectory = await rig.end(session)
    (segment,) = trajectory.segments
    assert segment.calls == (live.rid, later.rid)
    assert sum(trajectory.lost_tokens.values()) == len(dead.output_ids)
    assert set(trajectory.lost_tokens) <= {"retry", "undelivered"}


async def test_c58_the_same_turn_while_the_first_attempt_runs_gets_the_one_answer(rig):
    rig.engine.hold_after = 2
    session = await rig.open()
    first = asyncio.create_task(rig.post(session, body("hi", stream=True)))
    await rig.engine.until_running(1)
    second = asyncio.create_task(rig.chat(session, "hi"))
    attempts = rig.proxy.pipeline.attempts.joinable
    while sum(attempt.waiters for attempt in attempts.values()) != 2:
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await rig.engine.release()
    reply = await second
    assert len(rig.engine.requests) == 1
    await rig.chat(session, "hi", echo(reply), "on")
    assert (await rig.end(session)).lost_tokens == {}


async def test_c58_errors_before_the_first_byte_are_real_http_errors(make_rig):
    rig = await make_rig(engine_attempts=1, context_window=64)
    session = await rig.open()
    rig.engine.inject(Fault.UNAVAILABLE)
    for text, error in (("hi", openai.InternalServerError), ("w " * 100, openai.BadRequestError)):
        with pytest.raises(error):
            await rig.chat(session, text, stream=True)
