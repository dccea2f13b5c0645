"""A pause survives the proxy, and versions only rise."""

import asyncio
import json

import httpx
import pytest
from dressage_proxy import ConfigError
from dressage_proxy.controller import Controller
from dressage_proxy.engine.scripted import ScriptedEngine
from dressage_proxy.errors import ConflictError
from dressage_proxy.gate import GateFile, GateState, from_json, to_json
from dressage_store import FilesStore
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

KEY = "control-key-of-these-tests"
AUTH = {"Authorization": f"Bearer {KEY}"}
STATES = st.builds(
    GateState,
    st.booleans(),
    st.frozensets(st.text(max_size=8), max_size=4),
    st.integers(-1, 2**31 - 1),
)


@given(STATES)
def test_a_state_is_read_as_it_was_written(state):
    assert from_json(to_json(state)) == state


@given(STATES, st.integers(0, 2**31 - 1))
def test_versions_only_rise(state, version):
    if version < state.version:
        with pytest.raises(ConflictError) as caught:
            state.opened(version)
        assert (caught.value.field, caught.value.status) == ("version", 409)
        assert str(state.version) in caught.value.message
        assert "--store" in (caught.value.fix or "")
    else:
        assert state.opened(version) == GateState(version=version)


@given(STATES, STATES)
def test_a_shard_takes_the_pause_of_all_and_keeps_its_own_sessions(own, whole):
    joined = own.within(whole)
    assert (joined.paused, joined.sessions) == (whole.paused, own.sessions)
    assert joined.version == max(own.version, whole.version)


class Nobody:
    async def abort(self, engine, rid):
        return True


class Gate(RuleBasedStateMachine):
    """A controller, and the one that a restart would make of its file."""

    def __init__(self):
        super().__init__()
        self.file = GateFile(self.folder / "gate.json")
        self.file.write(GateState())
        self.controller = Controller(Nobody(), self.file)
        self.known = set("abc")

    @rule(session=st.sampled_from([None, "a", "b", "c"]))
    def pause(self, session):
        asyncio.run(self.controller.pause(session, 0))

    @rule(version=st.integers(0, 5))
    def resume(self, version):
        before = self.controller.state
        try:
            self.controller.resume(version)
        except ConflictError:
            assert self.controller.state == before

    @rule(session=st.sampled_from("abc"))
    def end(self, session):
        self.controller.forget(session)
        self.known.discard(session)

    @rule(session=st.sampled_from("abc"))
    def open(self, session):
        if session not in self.known and session not in self.file.read().sessions:
            self.known.add(session)  # ids are never used again

    @invariant()
    def a_restart_finds_it_as_it_was_left(self):
        again = Controller(Nobody(), self.file)
        again.recover(self.known)
        assert again.state == self.controller.state.only(self.known)


def test_a_restart_finds_the_gate_as_it_was_left(tmp_path):
    Gate.folder = tmp_path
    run_state_machine_as_test(Gate, settings=settings(max_examples=20, stateful_step_count=15))


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"paused": true}', to_json(GateState()).replace("-1", "true"), "\x00"]
)
def test_a_file_that_does_not_say_whether_it_was_paused_is_refused(tmp_path, text):
    path = tmp_path / "gate.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"gate\.json .*delete it"):
        GateFile(path).read()


def test_a_state_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    file = GateFile(tmp_path / "gate.json")
    file.write(GateState(paused=True))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OSError, match="No space"):
        file.write(GateState())
    assert file.read() == GateState(paused=True)
    assert [path.name for path in tmp_path.iterdir()] == ["gate.json"]


async def resume(rig, version):
    return await rig.http.post("/rollout/resume", json={"version": version})


async def test_a_version_that_goes_back_is_refused_and_all_stays_paused(rig):
    assert (await resume(rig, 7)).status_code == 200
    await rig.http.post("/rollout/pause", json={"timeout_s": 1})
    reply = await resume(rig, 6)
    assert reply.status_code == 409
    error = reply.json()["error"]
    assert (error["code"], error["field"]) == ("version_went_back", "version")
    assert "7" in error["message"]
    assert error["fix"]
    state = (await rig.http.get("/rollout")).json()
    assert (state["state"], state["version"]) == ("paused", 7)
    assert (await resume(rig, 7)).json()["state"] == "running"


async def test_a_pause_that_cannot_be_noted_pauses_nothing(rig, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(GateFile, "write", full)
        reply = await rig.http.post("/rollout/pause", json={"timeout_s": 1})
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "store_failed")
        assert (await rig.http.get("/rollout")).json()["state"] == "running"
    assert (await rig.chat(await rig.open(), "hi")).choices


async def test_a_pause_survives_a_restart_for_all_and_for_each_session(make_rig):
    rig = await make_rig()
    one, other = await rig.open(), await rig.open()
    assert (await resume(rig, 3)).status_code == 200
    await rig.http.post("/rollout/pause", json={"session_id": one, "timeout_s": 1})
    again = await make_rig(engine=rig.engine, store=rig.store)
    state = (await again.http.get("/rollout")).json()
    assert state == {"state": "running", "version": 3, "in_flight": 0, "waiting": 0, "paused_sessions": 1}
    assert [(await again.http.get(f"/sessions/{each}")).json()["paused"] for each in (one, other)] == [
        True,
        False,
    ]
    assert (await again.chat(other, "hi")).choices
    await again.http.post("/rollout/pause", json={"timeout_s": 1})
    third = await make_rig(engine=rig.engine, store=rig.store)
    held = [asyncio.create_task(third.chat(each, "and now")) for each in (one, other)]
    while (await third.http.get("/rollout")).json()["waiting"] != 2:
        await asyncio.sleep(0)
    assert (await third.http.get("/rollout")).json()["state"] == "paused"
    metrics = (await third.http.get("/metrics")).text
    assert "dressage_paused 1.0" in metrics
    assert "dressage_waiting_turns 2.0" in metrics
    assert (await resume(third, 3)).json() == {"state": "running", "version": 3, "in_flight": 0, "waiting": 2}
    assert all(reply.choices for reply in await asyncio.gather(*held))
    assert "dressage_paused 0.0" in (await third.http.get("/metrics")).text


async def test_a_session_that_ended_while_it_was_paused_is_paused_no_more(make_rig):
    rig = await make_rig()
    session = await rig.open()
    await rig.http.post("/rollout/pause", json={"session_id": session, "timeout_s": 1})
    await rig.http.delete(f"/sessions/{session}")
    for each in (rig, await make_rig(engine=rig.engine, store=rig.store)):
        assert "paused_sessions" not in (await each.http.get("/rollout")).json()


async def test_a_resume_ends_a_pause_that_still_waits(make_rig):
    rig = await make_rig()
    rig.script("abcdefgh")
    rig.engine.hold_after = 4
    session = await rig.open(limits={"max_version_switches": 0})
    reply = asyncio.create_task(rig.chat(session, "hi"))
    await rig.engine.until_running(1)
    pausing = asyncio.create_task(rig.http.post("/rollout/pause", json={"timeout_s": 15}))
    while (await rig.http.get("/rollout")).json()["state"] != "paused":
        await asyncio.sleep(0)
    await resume(rig, 0)
    async with asyncio.timeout(12):
        assert (await pausing).json()["quiesced"] is False
    await rig.engine.release()
    assert (await reply).choices[0].message.content == "abcdefgh"


async def test_an_engine_that_hangs_keeps_no_pause_beyond_its_time(make_rig):
    hung = asyncio.Event()

    class Hanging(ScriptedEngine):
        async def __call__(self, scope, receive, send):
            if scope["path"] == "/abort_request":
                await hung.wait()
            await super().__call__(scope, receive, send)

    rig = await make_rig(engine=Hanging())
    rig.script("abcdefgh")
    rig.engine.hold_after = 4
    reply = asyncio.create_task(rig.chat(await rig.open(), "hi"))
    await rig.engine.until_running(1)
    async with asyncio.timeout(30):
        paused = await rig.http.post("/rollout/pause", json={"timeout_s": 0.05})
    assert paused.json() == {"quiesced": False, "preempted": 1, "waiting": 0}
    hung.set()
    async with asyncio.timeout(30):
        assert (await rig.http.post("/rollout/pause", json={"timeout_s": 25})).json()["quiesced"] is True
    await rig.engine.release()
    await resume(rig, 1)
    assert (await reply).choices


@pytest.mark.heavy
def test_shards_that_were_killed_while_paused_come_back_paused(spawn, toy_folder, tmp_path):
    engine = spawn("dressage_proxy.engine.scripted", "--port", "0")
    url = next(value for value in engine.ready.values() if str(value).startswith("http"))
    served = []

    def serve():
        served.append(
            spawn(
                "dressage_proxy.cli", "serve", "--tokenizer", toy_folder, "--engine", url, "--store",
                tmp_path / "store", "--port", "0", "--shards", "2", "--log-level", "error",
                DRESSAGE_CONTROL_KEY=KEY,
            )
        )  # fmt: skip
        return httpx.Client(base_url=served[-1].ready["data_url"], headers=AUTH, timeout=10, trust_env=False)

    with serve() as http:
        sessions = [http.post("/sessions", json={"instance_id": "i"}).json()["session_id"] for _ in range(3)]
        http.post("/rollout/resume", json={"version": 4})
        alone = http.post("/rollout/pause", json={"session_id": sessions[0], "timeout_s": 1})
        assert alone.json()["quiesced"]
        assert http.post("/rollout/pause", json={"timeout_s": 1}).json()["quiesced"]
        served[-1].kill()
    with serve() as http:
        state = http.get("/rollout").json()
        assert (state["state"], state["version"], state["paused_sessions"]) == ("paused", 4, 1)
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        with pytest.raises(httpx.ReadTimeout):
            http.post(f"/s/{sessions[1]}/v1/chat/completions", json=body, timeout=0.3)
        assert http.post("/rollout/resume", json={"version": 3}).status_code == 409
        assert http.post("/rollout/resume", json={"version": 5}).status_code == 200
        assert "paused_sessions" not in http.get("/rollout").json()
        for session in sessions:
            assert http.post(f"/s/{session}/v1/chat/completions", json=body).status_code == 200
    assert json.loads((tmp_path / "store" / "gate.json").read_text())["paused"] is False


def test_the_file_is_no_part_of_the_store(tmp_path):
    with FilesStore(tmp_path / "store") as store:
        GateFile(tmp_path / "store" / "gate.json").write(GateState(paused=True))
        assert store.sessions() == []
    with FilesStore(tmp_path / "store", read_only=True) as store:
        assert store.entries() == []
