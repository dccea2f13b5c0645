"""Sessions over the control plane, from open to ack, as proxy-api names it."""

import asyncio
import os
from collections.abc import Sized
from dataclasses import fields
from types import SimpleNamespace

import httpx
from dressage_segments import iter_frames, segment_from_bytes
from dressage_store import FilesStore
from dressage_tito import ChatCodec


def error_of(reply, status):
    """The error of a reply, whose shape is checked."""
    assert reply.status_code == status, reply.text
    body = reply.json()
    assert set(body) == {"error"}
    assert set(body["error"]) <= {"code", "message", "field", "fix"}
    assert body["error"]["code"]
    assert body["error"]["message"]
    return body["error"]


async def test_open_answers_an_unguessable_id_and_base_urls(rig):
    reply = await rig.http.post("/sessions", json={"instance_id": "task-1"})
    assert reply.status_code == 201
    body = reply.json()
    session = body["session_id"]
    assert len(session) == 32
    assert int(session, 16)
    base = f"{rig.url}/s/{session}"
    assert body == {"session_id": session, "base_urls": {"openai": f"{base}/v1", "anthropic": base}}


async def test_what_a_session_was_opened_with_is_in_its_segments(rig):
    session = await rig.open(instance_id="a", group_id="g", rollout_id="r", labels={"k": "v"})
    await rig.chat(session, "hi")
    state = (await rig.http.get(f"/sessions/{session}")).json()
    assert (state["instance_id"], state["group_id"], state["rollout_id"]) == ("a", "g", "r")
    assert state["labels"] == {"k": "v"}
    (segment,) = (await rig.end(session)).segments
    assert (segment.instance_id, segment.group_id, segment.rollout_id) == ("a", "g", "r")
    assert (await rig.end(await rig.open())).rollout_id, "a rollout always has an id"


async def test_get_tells_state_steps_branches_and_tokens(rig):
    session = await rig.open()
    path = f"/sessions/{session}"
    state = (await rig.http.get(path)).json()
    assert (state["state"], state["steps"], state["branches"], state["tokens"]) == ("open", 0, {}, 0)
    first = await rig.chat(session, "hi")
    await rig.chat(session, {"role": "system", "content": "other"}, "task")
    state = (await rig.http.get(path)).json()
    assert (state["steps"], state["branches"]) == (2, {"main": 1, "subagent": 1})
    assert state["tokens"] == sum(len(request.output_ids) for request in rig.engine.requests)
    assert first.usage.completion_tokens < state["tokens"]
    await rig.end(session)
    state = (await rig.http.get(path)).json()
    assert (state["state"], state["steps"], state["generation"]) == ("finalized", 2, 1)
    assert state["branches"] == {"main": 1, "subagent": 1}, "an end takes nothing away"


async def test_the_first_caller_does_not_wait_for_what_the_tokenizer_finds_out_about_itself(
    make_rig, monkeypatch
):
    begun = []
    real = ChatCodec.start
    monkeypatch.setattr(ChatCodec, "start", lambda *args, **named: begun.append(1) or real(*args, **named))
    rig = await make_rig()
    assert begun == [1], "before it listens"
    await rig.chat(await rig.open(), "hi")


async def test_a_proxy_on_every_address_is_where_its_session_was_opened(rig):
    for listens, asked, expected in (
        ("0.0.0.0", "gpu-7:9000", "http://gpu-7:8080"),
        ("0.0.0.0", "10.0.0.7", "http://10.0.0.7:8080"),
        ("[::]", "[fd00::7]:9000", "http://[fd00::7]:8080"),
        ("10.0.0.1", "gpu-7:9000", "http://10.0.0.1:8080"),
    ):
        transport = httpx.ASGITransport(rig.proxy.control_app(f"http://{listens}:8080"))
        headers = {"Authorization": f"Bearer {rig.key}", "Host": asked}
        async with httpx.AsyncClient(transport=transport, base_url="http://x", headers=headers) as http:
            opened = (await http.post("/sessions", json={"instance_id": "i"})).json()
        assert opened["base_urls"]["anthropic"] == f"{expected}/s/{opened['session_id']}"


async def test_what_may_be_left_out_may_be_null(rig):
    names = ("group_id", "rollout_id", "sampling", "limits", "labels", "thinking")
    session = await rig.open(**dict.fromkeys(names))
    await rig.chat(session, "hi")
    body = {"outcome": None, "failure_class": None}
    assert (await rig.http.post(f"/sessions/{session}/finalize", json=body)).json()["segments"] == 1
    assert rig.store.read(session).segments[0].failure_class == "completed"


async def test_a_proxy_that_is_being_stopped_opens_no_session(rig):
    await rig.proxy.drain()
    reply = await rig.http.post("/sessions", json={"instance_id": "i"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "draining")
    assert reply.headers["retry-after"]


async def test_a_call_in_the_making_is_in_flight(rig):
    rig.engine.hold_after = 2
    session = await rig.open()
    task = asyncio.create_task(rig.chat(session, "hi"))
    await rig.engine.until_running(1)
    assert (await rig.http.get(f"/sessions/{session}")).json()["in_flight"] == 1
    assert (await rig.http.get("/rollout")).json() == {
        "state": "running", "version": None, "in_flight": 1, "waiting": 0,
    }  # fmt: skip
    await rig.engine.release()
    await task
    assert (await rig.http.get(f"/sessions/{session}")).json()["in_flight"] == 0


async def test_finalize_is_idempotent_whatever_is_asked_the_second_time(rig):
    session = await rig.open()
    usage = (await rig.chat(session, "hi")).usage
    path = f"/sessions/{session}/finalize"
    first = await rig.http.post(path, json={"outcome": {"reward": 1.0}})
    assert first.status_code == 200
    assert first.json()["segments"] == 1
    assert first.json()["trained_tokens"] == usage.completion_tokens
    assert first.json()["lost_tokens"] == {}
    for body in ({}, {"outcome": {"reward": 0.0}}, {"failure_class": "infrastructure"}):
        assert (await rig.http.post(path, json=body)).json() == first.json()
    assert (await rig.http.post(path)).json() == first.json(), "the body may be left out"
    trajectory = rig.store.read(session)
    assert (trajectory.outcome, trajectory.failure_class) == ({"reward": 1.0}, "completed")


async def test_a_finalize_that_ends_otherwise_is_told_how_the_session_ended(make_rig, caplog):
    rig = await make_rig()
    session = await rig.open()
    await rig.chat(session, "hi")
    path, first = f"/sessions/{session}/finalize", {"outcome": {"reward": 0.5}, "failure_class": "truncated"}
    ended = (await rig.http.post(path, json=first)).json()
    assert ended["failure_class"] == "truncated"
    again = await make_rig(engine=rig.engine, store=rig.store)
    for body, told in [
        ({}, None),
        (first, None),
        ({"failure_class": "timeout"}, "as timeout, it stays truncated"),
        ({"outcome": {"reward": 1.0}}, "with another outcome, the first stays"),
    ]:
        for each in (rig, again):
            caplog.clear()
            assert (await each.http.post(path, json=body)).json() == ended
            lines = [record.getMessage() for record in caplog.records if record.name == "dressage.proxy"]
            assert lines == ([] if told is None else [f"session {session} is finalised again: {told}"])
    assert (await rig.http.get(f"/sessions/{session}")).json()["failure_class"] == "truncated"
    assert rig.store.read(session).outcome == {"reward": 0.5}


async def test_concurrent_finalizes_agree(rig):
    session = await rig.open()
    await rig.chat(session, "hi")
    path = f"/sessions/{session}/finalize"
    replies = await asyncio.gather(*(rig.http.post(path, json={"outcome": {"n": n}}) for n in range(5)))
    assert len({reply.text for reply in replies}) == 1
    assert [r.kind for r in rig.store.records(session)].count("final") == 1


LOST_AS = {
    "completed": None, "truncated": None, "policy_failure": None, "overflow": None,
    "infrastructure": "infrastructure_failure", "timeout": "timeout", "aborted": "aborted",
    "stale": "stale", "suspected_cheating": "suspected_cheating",
}  # fmt: skip


async def test_the_failure_class_decides_what_trains(rig):
    for failure, lost in LOST_AS.items():
        session = await rig.open()
        tokens = (await rig.chat(session, "hi")).usage.completion_tokens
        reply = await rig.http.post(f"/sessions/{session}/finalize", json={"failure_class": failure})
        expected = (tokens, {}) if lost is None else (0, {lost: tokens})
        assert (reply.json()["trained_tokens"], reply.json()["lost_tokens"]) == expected
        assert (await rig.end(session)).failure_class == failure


async def test_finalize_ends_what_is_still_in_the_making_and_counts_it(rig):
    rig.engine.hold_after = 3
    session = await rig.open()
    task = asyncio.create_task(rig.post(session, {"messages": [{"role": "user", "content": "hi"}]}))
    await rig.engine.until_running(1)
    trajectory = await rig.end(session)
    assert (trajectory.sampled_tokens, trajectory.lost_tokens) == (3, {"undelivered": 3})
    assert (await task).status_code == 410
    await rig.engine.until_running(0)


async def test_no_call_begins_while_a_session_is_being_finalised(rig):
    rig.engine.hold_after = 3
    session = await rig.open()
    body = {"messages": [{"role": "user", "content": "hi"}]}
    task = asyncio.create_task(rig.post(session, body))
    await rig.engine.until_running(1)
    ending = asyncio.create_task(rig.http.post(f"/sessions/{session}/finalize"))
    while not rig.engine.aborts:
        await asyncio.sleep(0)
    late = await rig.post(session, {"messages": [{"role": "user", "content": "late"}]})
    assert late.status_code == 410
    await asyncio.gather(task, ending)
    assert len(rig.engine.requests) == 1


async def test_a_request_whose_body_is_still_coming_when_its_session_ends_samples_nothing(rig, monkeypatch):
    session = await rig.open()
    routed, go_on, abort = asyncio.Event(), asyncio.Event(), rig.proxy.engines.abort
    rig.engine.hold_after = 3
    running = asyncio.create_task(rig.post(session, {"messages": [{"role": "user", "content": "hi"}]}))
    await rig.engine.until_running(1)
    live = rig.proxy.sessions.live

    def watched(session_id):
        routed.set()
        return live(session_id)

    async def slow_abort(engine, rid):
        await go_on.wait()
        return await abort(engine, rid)

    async def slow_body():
        yield b'{"messages": [{"role": "user", '
        await routed.wait()
        while not rig.proxy.sessions.find(session).ending:
            await asyncio.sleep(0)
        yield b'"content": "late"}]}'

    monkeypatch.setattr(type(rig.proxy.sessions), "live", lambda self, session_id: watched(session_id))
    monkeypatch.setattr(type(rig.proxy.engines), "abort", lambda self, *call: slow_abort(*call))
    late = asyncio.create_task(rig.http.post(f"/s/{session}/v1/chat/completions", content=slow_body()))
    await routed.wait()
    ending = asyncio.create_task(rig.http.post(f"/sessions/{session}/finalize"))
    try:
        async with asyncio.timeout(30):
            assert (await late).status_code == 410
    finally:
        go_on.set()
    assert (await ending).status_code == 200
    assert (await running).status_code == 410
    assert len(rig.engine.requests) == 1


async def test_an_empty_session_ends_with_no_segments(rig):
    session = await rig.open()
    trajectory = await rig.end(session)
    assert trajectory.segments == ()
    reply = await rig.http.get(f"/sessions/{session}/segments")
    assert (reply.status_code, reply.content, reply.headers["etag"]) == (200, b"", '"1"')


async def test_segments_are_frames_of_safetensors_and_reading_removes_nothing(rig):
    session = await rig.open()
    await rig.chat(session, "hi")
    await rig.chat(session, {"role": "system", "content": "other"}, "task")
    path = f"/sessions/{session}/segments"
    assert error_of(await rig.http.get(path), 409)["code"] == "session_open"
    trajectory = await rig.end(session)
    first, second = await rig.http.get(path), await rig.http.get(path)
    assert first.content == second.content
    assert first.headers["content-type"] == "application/octet-stream"
    assert first.headers["etag"] == '"1"'
    segments = [segment_from_bytes(buffer) for buffer in iter_frames(first.content)]
    assert [s.token_ids.tolist() for s in segments] == [s.token_ids.tolist() for s in trajectory.segments]
    assert sum(segment.anchor for segment in segments) == 1


async def test_a_session_that_has_ended_keeps_nothing_of_its_conversation_in_memory(rig, call, shell):
    """It may wait long for its ack, and many do at once."""
    rig.script(call(command="ls"), "done")
    session = await rig.open()
    first = await rig.chat(session, "hi", tools=[shell])
    message = first.choices[0].message.model_dump(exclude_none=True)
    answer = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "a"}
    await rig.chat(session, "hi", message, answer, tools=[shell])
    live = rig.proxy.sessions.find(session)
    full = [field.name for field in fields(live) if isinstance(getattr(live, field.name), Sized)]
    assert live.reply_keys
    await rig.end(session)
    assert {name for name in full if len(getattr(live, name))} <= {"sampling", "labels", "thinking", "state"}


async def test_only_an_ack_of_the_right_generation_lets_the_proxy_forget(rig):
    session = await rig.open()
    path = f"/sessions/{session}"
    assert error_of(await rig.http.post(f"{path}/ack", json={"generation": 1}), 409)["code"] == "session_open"
    await rig.chat(session, "hi")
    await rig.end(session)
    wrong = error_of(await rig.http.post(f"{path}/ack", json={"generation": 2}), 409)
    assert (wrong["code"], wrong["field"]) == ("wrong_generation", "generation")
    assert (await rig.http.get(f"{path}/segments")).status_code == 200
    for _ in range(2):
        reply = await rig.http.post(f"{path}/ack", json={"generation": 1})
        assert (reply.status_code, reply.content) == (204, b"")
    assert rig.store.pending() == []
    for reply in (
        await rig.http.get(path),
        await rig.http.get(f"{path}/segments"),
        await rig.http.post(f"{path}/finalize"),
        await rig.http.delete(path),
    ):
        assert error_of(reply, 410)["code"] == "session_finished"


async def test_delete_aborts_what_runs_and_counts_all_as_lost(rig):
    rig.script("abc", "defghij")
    session = await rig.open()
    await rig.chat(session, "hi")
    rig.engine.hold_after = 2
    task = asyncio.create_task(rig.post(session, {"messages": [{"role": "user", "content": "more"}]}))
    await rig.engine.until_running(1)
    reply = await rig.http.delete(f"/sessions/{session}")
    assert (reply.status_code, reply.content) == (204, b"")
    await rig.engine.until_running(0)
    assert (await task).status_code == 410
    assert error_of(await rig.http.get(f"/sessions/{session}"), 410)
    assert rig.store.sessions() == []
    tokens = len(rig.engine.requests[0].output_ids) + 2
    metrics = (await rig.http.get("/metrics")).text
    assert f'dressage_lost_tokens_total{{cause="deleted"}} {float(tokens)}' in metrics
    assert (await rig.http.delete(f"/sessions/{session}")).status_code == 204, "again: nothing more"


async def test_a_deleted_trajectory_is_no_longer_there_to_be_read(rig):
    session = await rig.open()
    await rig.chat(session, "hi")
    await rig.end(session)
    assert (await rig.http.delete(f"/sessions/{session}")).status_code == 204
    assert rig.store.pending() == []
    assert error_of(await rig.http.get(f"/sessions/{session}/segments"), 410)


async def test_health_ready_and_metrics(rig):
    for path in ("/health", "/ready"):
        reply = await rig.http.get(path, headers={"Authorization": ""})
        assert reply.status_code == 200, "probes hold no key"
    await rig.chat(await rig.open(), "hi")
    ready = (await rig.http.get("/ready")).json()
    assert ready["ready"] is True
    assert ready["store_writable"] is True
    assert list(ready["engines"].values()) == [True]
    assert list(ready["engines"]) == list(rig.proxy.engines.urls)
    probe = (await rig.http.get("/ready", headers={"Authorization": ""})).json()
    assert probe["engines"] == {"engine 1": True}, "whoever has no key may be an agent"
    metrics = (await rig.http.get("/metrics")).text
    assert 'dressage_requests_total{dialect="chat",status="200"} 1.0' in metrics
    assert "dressage_sampled_tokens_total" in metrics
    assert "dressage_open_sessions 1.0" in metrics
    rig.engine.healthy = False
    reply = await rig.http.get("/ready")
    assert (reply.status_code, reply.json()["ready"]) == (503, False)
    assert (await rig.http.get("/health")).status_code == 200


async def test_a_full_disk_is_not_ready(rig, monkeypatch):
    disk = os.statvfs("/")
    for full in ({"f_bavail": 0}, {"f_favail": 0, "f_files": 1}):
        fields = {name: getattr(disk, name) for name in dir(disk) if name.startswith("f_")}
        with monkeypatch.context() as patch:
            patch.setattr(os, "statvfs", lambda _, told=fields | full: SimpleNamespace(**told))
            reply = await rig.http.get("/ready")
        assert (reply.status_code, reply.json()["store_writable"]) == (503, False)
    assert (await rig.http.get("/ready")).status_code == 200


async def test_load_balancers_may_ask_for_the_head_of_health_and_ready(rig):
    for path in ("/health", "/ready"):
        reply = await rig.http.head(path, headers={"Authorization": ""})
        assert (reply.status_code, reply.content) == (200, b"")
    rig.engine.healthy = False
    assert (await rig.http.head("/ready")).status_code == 503


async def test_pause_and_resume_tell_the_state_and_the_version(rig):
    assert (await rig.http.post("/rollout/pause")).status_code == 422, "a body is asked for"
    reply = await rig.http.post("/rollout/pause", json={"timeout_s": 5})
    assert reply.json() == {"quiesced": True, "preempted": 0, "waiting": 0}
    assert (await rig.http.get("/rollout")).json()["state"] == "paused"
    resumed = (await rig.http.post("/rollout/resume", json={"version": 7})).json()
    assert (resumed["state"], resumed["version"]) == ("running", 7)


async def test_a_failed_finalize_is_tried_again_with_the_end_that_the_log_has(rig, monkeypatch):
    session = await rig.open()
    await rig.chat(session, "hi")
    put = FilesStore.put

    def refuse(*_):
        raise OSError("no space left")

    monkeypatch.setattr(FilesStore, "put", refuse)
    path = f"/sessions/{session}/finalize"
    assert error_of(await rig.http.post(path, json={"outcome": {"reward": 1.0}}), 503)
    assert (await rig.post(session, {"messages": [{"role": "user", "content": "x"}]})).status_code == 410
    monkeypatch.setattr(FilesStore, "put", put)
    assert (await rig.http.post(path, json={"outcome": {"reward": 0.0}})).status_code == 200
    assert (await rig.end(session)).outcome == {"reward": 1.0}


async def test_a_finalize_that_could_not_be_logged_leaves_the_session_open(rig, monkeypatch):
    session = await rig.open()
    append = FilesStore.append

    def refuse(*_):
        raise OSError("no space left")

    monkeypatch.setattr(FilesStore, "append", refuse)
    assert error_of(await rig.http.post(f"/sessions/{session}/finalize"), 503)
    monkeypatch.setattr(FilesStore, "append", append)
    await rig.chat(session, "hi")
    assert len((await rig.end(session)).segments) == 1
