"""What a proxy makes of a store that an earlier one left behind, wherever that one ended."""

import asyncio

import numpy as np
from dressage_segments import (
    FailureClass,
    Final,
    LogRecord,
    final_to_record,
    record_to_bytes,
    tree_from_records,
)


def echo(reply):
    return reply.choices[0].message.model_dump(exclude_none=True)


async def restarted(make_rig, rig):
    """Another proxy on the same store and engine."""
    return await make_rig(store=rig.store, engine=rig.engine)


async def test_open_sessions_go_on_with_their_prefix_calls_limits_and_sampling(rig, make_rig, shell, call):
    rig.script(call(command="ls"), "done")
    session = await rig.open(
        sampling={"temperature": 0.5, "stop": ["Z"]}, limits={"max_steps": 2}, labels={"k": "v"}
    )
    first = await rig.chat(session, "hi", tools=[shell])
    again = await restarted(make_rig, rig)
    state = (await again.http.get(f"/sessions/{session}")).json()
    assert (state["state"], state["steps"], state["labels"]) == ("open", 1, {"k": "v"})
    answer = {
        "role": "tool", "tool_call_id": first.choices[0].message.tool_calls[0].id, "content": "a"
    }  # fmt: skip
    await again.chat(session, "hi", echo(first), answer, tools=[shell])
    one, two = rig.engine.requests
    whole = one.input_ids + one.output_ids
    assert two.input_ids[: len(whole)] == whole
    assert (two.sampling_params["temperature"], two.sampling_params["stop"]) == (0.5, ["Z"])
    assert "flags" not in again.tree(session).turn(1).extra, "the call is known"
    more = await again.post(session, {"messages": [{"role": "user", "content": "more"}]})
    assert more.json()["error"]["code"] == "max_steps_reached"
    assert len((await again.end(session)).segments) == 1


async def test_marks_and_siblings_are_as_they_were(rig, make_rig):
    rig.engine.hold_after = 2
    session = await rig.open()
    task = asyncio.create_task(rig.chat(session, "hi"))
    await rig.engine.until_running(1)
    task.cancel()
    await rig.engine.until_running(0)
    while (await rig.http.get(f"/sessions/{session}")).json()["in_flight"]:
        await asyncio.sleep(0)
    await rig.engine.release()
    again = await restarted(make_rig, rig)
    reply = await again.chat(session, "hi")
    await again.chat(session, "hi", echo(reply), "on")
    assert (await again.end(session)).lost_tokens == {"undelivered": 2}


async def test_a_finalised_session_answers_as_before_until_it_is_acked(rig, make_rig):
    session = await rig.open()
    await rig.chat(session, "hi")
    before = (await rig.http.post(f"/sessions/{session}/finalize", json={"outcome": {"reward": 1}})).json()
    content = (await rig.http.get(f"/sessions/{session}/segments")).content
    again = await restarted(make_rig, rig)
    assert (await again.http.post(f"/sessions/{session}/finalize")).json() == before
    assert (await again.http.get(f"/sessions/{session}/segments")).content == content
    reply = await again.post(session, {"messages": [{"role": "user", "content": "x"}]})
    assert reply.status_code == 410
    assert (await again.http.post(f"/sessions/{session}/ack", json={"generation": 1})).status_code == 204
    last = await restarted(make_rig, again)
    for path in (f"/sessions/{session}", f"/sessions/{session}/segments"):
        assert (await last.http.get(path)).status_code == 410, "it is not read twice"
    assert (await last.http.post(f"/sessions/{session}/ack", json={"generation": 1})).status_code == 204


async def test_an_end_that_was_logged_but_not_published_is_published(rig, make_rig):
    session = await rig.open()
    await rig.chat(session, "hi")
    final = Final(1, FailureClass.TRUNCATED, {"reward": 0.5})
    rig.store.append(session, final_to_record(final))  # and here the process was killed
    again = await restarted(make_rig, rig)
    trajectory = await again.end(session)
    assert (trajectory.outcome, trajectory.failure_class) == ({"reward": 0.5}, "truncated")
    assert len(trajectory.segments) == 1


async def test_a_deletion_that_was_logged_but_not_done_is_done(rig, make_rig):
    open_one, ended = await rig.open(), await rig.open()
    for session in (open_one, ended):
        await rig.chat(session, "hi")
    await rig.end(ended)
    for session in (open_one, ended):
        rig.store.append(session, LogRecord("deleted", {"sampled_tokens": 1}))
    again = await restarted(make_rig, rig)
    for session in (open_one, ended):
        assert (await again.http.get(f"/sessions/{session}")).status_code == 410
    assert rig.store.sessions() == rig.store.pending() == []


async def test_a_copy_of_a_log_is_no_session_and_does_not_take_its_place(rig, make_rig):
    session = await rig.open()
    await rig.chat(session, "hi")
    logs = rig.store.root / "log"
    (logs / f"{session}.bak.log").write_bytes((logs / f"{session}.log").read_bytes())
    await rig.chat(session, "other")
    again = await restarted(make_rig, rig)
    assert (await again.http.get(f"/sessions/{session}.bak")).status_code == 410
    assert (await again.http.get(f"/sessions/{session}")).json()["steps"] == 2
    await again.chat(session, "more")
    assert len((await again.end(session)).segments) == 3


async def test_a_damaged_session_is_left_alone_and_the_others_go_on(rig, make_rig):
    good, torn, wrong = await rig.open(), await rig.open(), await rig.open()
    for session in (good, torn, wrong):
        await rig.chat(session, "hi")
        await rig.chat(session, "other")
    path = rig.store.root / "log" / f"{torn}.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    turn = [record for record in rig.store.records(wrong) if record.kind == "turn"][-1]
    arrays = {**turn.arrays, "delta_ids": np.asarray(turn.arrays["delta_ids"]) + 1}
    again_turn = LogRecord("turn", {**turn.meta, "index": 2}, arrays)
    assert record_to_bytes(again_turn)
    rig.store.append(wrong, again_turn)  # its ids are not what its engine call was made with
    again = await restarted(make_rig, rig)
    for session in (torn, wrong):
        reply = await again.http.get(f"/sessions/{session}")
        assert reply.status_code == 410
        assert "damaged" in reply.json()["error"]["message"]
    assert path.exists(), "what is left of it may still be looked at"
    assert len(tree_from_records(rig.store.records(good))) == 2
    await again.chat(good, "more")
    assert len((await again.end(good)).segments) == 3
