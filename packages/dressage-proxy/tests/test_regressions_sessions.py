"""Defects once found in how sessions end, and in what requests may say."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from dressage_proxy.session import Session
from dressage_segments import LossCause
from dressage_store import CorruptStoreError, StoreClosedError, StoreError, StoreFullError

USER = {"role": "user", "content": "hi"}


async def held(rig: Any, session: str, tokens: int = 2) -> asyncio.Task[Any]:
    """A call that the engine holds after ``tokens``."""
    rig.engine.hold_after = tokens
    call = asyncio.create_task(rig.post(session, {"messages": [USER]}))
    await rig.engine.until_running(1)
    return call


@pytest.mark.parametrize("verb", ["finalize", "delete"])
async def test_a_request_while_a_session_is_being_ended_is_gone_and_samples_nothing(
    rig: Any, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await rig.open()
    call = await held(rig, session)
    aborting, go_on = asyncio.Event(), asyncio.Event()
    abort = rig.proxy.engines.abort

    async def slow(engine: str, rid: str) -> bool:
        aborting.set()
        await go_on.wait()
        return bool(await abort(engine, rid))

    monkeypatch.setattr(rig.proxy.engines, "abort", slow)
    request = (
        ("POST", f"/sessions/{session}/finalize")
        if verb == "finalize"
        else ("DELETE", f"/sessions/{session}")
    )
    ending = asyncio.create_task(rig.http.request(*request))
    await aborting.wait()
    late = await rig.post(session, {"messages": [{"role": "user", "content": "another"}]})
    assert (late.status_code, late.json()["error"]["code"]) == (410, "session_finished")
    assert "being ended" in late.json()["error"]["message"]
    go_on.set()
    assert (await ending).is_success
    assert (await call).status_code == 410
    assert len(rig.engine.requests) == 1
    if verb == "finalize":
        assert (await rig.end(session)).lost_tokens == {LossCause.UNDELIVERED: 2}


async def test_deleting_counts_what_was_sampled_so_far_and_again_changes_nothing(rig: Any) -> None:
    session = await rig.open()
    call = await held(rig, session)
    for _ in range(2):
        assert (await rig.http.delete(f"/sessions/{session}")).status_code == 204
    both = await asyncio.gather(*(rig.http.delete(f"/sessions/{session}") for _ in range(2)))
    assert [reply.status_code for reply in both] == [204, 204]
    assert (await call).status_code == 410
    metrics = (await rig.http.get("/metrics")).text
    assert 'dressage_lost_tokens_total{cause="deleted"} 2.0' in metrics


async def test_two_deletes_at_once_count_once(rig: Any) -> None:
    session = await rig.open()
    call = await held(rig, session)
    both = await asyncio.gather(*(rig.http.delete(f"/sessions/{session}") for _ in range(2)))
    assert [reply.status_code for reply in both] == [204, 204]
    await call
    assert 'dressage_lost_tokens_total{cause="deleted"} 2.0' in (await rig.http.get("/metrics")).text


@pytest.mark.parametrize("step", ["append", "forget"])
async def test_a_delete_that_the_store_failed_counts_once_when_it_is_made_again(
    rig: Any, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await rig.open()
    await rig.chat(session, "hi")
    tokens = float(rig.tree(session).sampled_tokens)

    def full(*_: object) -> None:
        raise StoreFullError("no room")

    with monkeypatch.context() as broken:
        broken.setattr(rig.store, step, full)
        assert (await rig.http.delete(f"/sessions/{session}")).status_code == 503
    assert (await rig.http.delete(f"/sessions/{session}")).status_code == 204
    metrics = (await rig.http.get("/metrics")).text
    assert f'dressage_lost_tokens_total{{cause="deleted"}} {tokens}' in metrics


@pytest.mark.parametrize(
    "error", [StoreFullError("full"), StoreClosedError("closed"), CorruptStoreError("bad")]
)
async def test_a_store_that_fails_is_a_503_on_both_planes_and_goes_on_after(
    rig: Any, error: StoreError, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await rig.open()

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(rig.store, "append", fail)
        reply = await rig.post(session, {"messages": [USER]})
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "store_failed")
        assert reply.headers["retry-after"]
        for path in ("/sessions", f"/sessions/{session}/finalize"):
            reply = await rig.http.post(path, json={"instance_id": "i"} if path == "/sessions" else {})
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "store_failed")
    assert (await rig.post(session, {"messages": [USER]})).status_code == 200
    assert (await rig.end(session)).trained_tokens > 0


async def test_a_full_disk_keeps_no_proxy_from_starting_and_what_ended_is_stored_later(
    make_rig: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its end was in the log, and its trajectory not in the store: only that one waits."""
    rig = await make_rig()
    ended, other, deleted = [await rig.open() for _ in range(3)]
    for session in (ended, other, deleted):
        await rig.chat(session, "hi")

    def full(*_: object) -> None:
        raise StoreFullError("no room")

    with monkeypatch.context() as broken:
        broken.setattr(rig.store, "put", full)
        broken.setattr(rig.store, "forget", full)
        body = {"failure_class": "truncated"}
        assert (await rig.http.post(f"/sessions/{ended}/finalize", json=body)).status_code == 503
        assert (await rig.http.delete(f"/sessions/{deleted}")).status_code == 503
        again = await make_rig(engine=rig.engine, store=rig.store)
        assert (await again.post(other, {"messages": [USER]})).status_code == 200
        assert (await again.post(ended, {"messages": [USER]})).status_code == 410
        assert (await again.http.get(f"/sessions/{deleted}")).status_code == 410
        assert (await again.http.post(f"/sessions/{ended}/finalize")).status_code == 503
        assert await again.proxy.sessions.expire() == 0
        assert "could not be stored: no room" in caplog.text
    assert await again.proxy.sessions.expire() == 0
    view = (await again.http.get(f"/sessions/{ended}")).json()
    assert (view["state"], view["failure_class"], view["expired"]) == ("finalized", "truncated", False)
    assert (await again.end(ended)).trained_tokens > 0
    assert deleted in rig.store.sessions(), "it is taken out at the next start"
    third = await make_rig(engine=rig.engine, store=rig.store)
    assert deleted not in rig.store.sessions()
    assert (await third.end(ended)).failure_class == "truncated"


async def test_a_group_that_was_not_given_is_not_made_up(rig: Any) -> None:
    """Advantages then refuse to run (MissingGroupError), instead of taking each task for its own group."""
    session = await rig.open(instance_id="task-7")
    await rig.chat(session, "hi")
    assert (await rig.http.get(f"/sessions/{session}")).json()["group_id"] == ""
    trajectory = await rig.end(session)
    assert (trajectory.group_id, trajectory.instance_id) == ("", "task-7")


@pytest.mark.parametrize("edit", [{"name": "invalid"}, {"arguments": '{"command": "other"}'}])
async def test_an_edited_echo_is_matched_by_its_call_id_and_flagged(
    rig: Any, shell: Any, call: Any, edit: dict[str, str]
) -> None:
    rig.script(call(command="ls"), "done")
    session = await rig.open()
    reply = await rig.chat(session, "hi", tools=[shell])
    made = reply.choices[0].message.tool_calls[0]
    function = {"name": made.function.name, "arguments": made.function.arguments, **edit}
    echo = {"role": "assistant", "tool_calls": [{"id": made.id, "type": "function", "function": function}]}
    result = {"role": "tool", "tool_call_id": made.id, "content": "ok"}
    await rig.chat(session, "hi", echo, result, tools=[shell])
    first, second = rig.tree(session).turns
    assert (first.parent, second.parent) == (-1, 0)
    assert "flags" not in first.extra
    assert second.extra["flags"] == ["messages[1] is not what was returned under its call ids"]
    sent = rig.engine.requests[1].input_ids
    assert sent[: len(first.delta_ids) + len(first.output_ids)] == [*first.delta_ids, *first.output_ids]
    await rig.end(session)


REFUSED = [
    ({"n": True}, "n"),
    ({"logprobs": 0}, "logprobs"),
    ({"stream": 1}, "stream"),
    ({"stream_options": 5}, "stream_options"),
    ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stream_options": {"other": True}}, "stream_options.other"),
    ({"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs.messages"),
    ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
    ({"tools": [{"type": "function", "function": {"name": 1}}]}, "tools[0]"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0]"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [USER, None]}, "messages[1]"),
]


@pytest.mark.parametrize(("body", "field"), REFUSED)
async def test_a_field_of_the_wrong_type_is_a_400_that_names_it_and_its_fix_once(
    rig: Any, body: dict[str, Any], field: str
) -> None:
    session = await rig.open()
    reply = await rig.post(session, {"messages": [USER], **body})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, field)
    assert field.split("[")[0] in error["message"]
    sentences = [part.strip() for part in error["message"].replace(":", ".").replace(";", ".").split(".")]
    assert len(sentences) == len(set(sentences))
    assert rig.engine.requests == []
    assert (await rig.post(session, {"messages": [USER]})).status_code == 200


async def test_twin_sub_agents_of_one_call_each_look_like_a_retry(rig: Any) -> None:
    """Known and documented: the same prompt under the same tools, with nothing after it, is sampled twice;
    one of the two is trained, the other is counted as a retry."""
    session = await rig.open()
    await asyncio.gather(rig.chat(session, "look"), rig.chat(session, "look", temperature=0.5))
    trajectory = await rig.end(session)
    (twin,) = trajectory.lost_tokens.items()
    assert twin == (LossCause.RETRY, trajectory.trained_tokens)


@pytest.mark.parametrize("route", ["chat/completions", "responses", "messages"])
async def test_nothing_keeps_a_session_that_was_deleted(rig: Any, route: str) -> None:
    session = await rig.open()
    said = [{"role": "user", "content": "go"}]
    body = {"model": "m", "input" if route == "responses" else "messages": said}
    limit = {"max_tokens": 9} if route == "messages" else {}
    reply = await rig.http.post(f"/s/{session}/v1/{route}", json={**body, **limit})
    assert reply.status_code == 200, reply.text
    gc.collect()
    gc.disable()
    try:
        assert (await rig.http.delete(f"/sessions/{session}")).status_code == 204
        left = [kept for kept in gc.get_objects() if isinstance(kept, Session) and kept.id == session]
    finally:
        gc.enable()
    assert left == []
