"""A full disk, and engines that are down, slow, dropping, or lying about lengths."""

import errno
import json
import os
import subprocess
import sys

import httpx
import pytest
from dressage_proxy.engine.scripted import Fault, Output, ScriptedEngine
from dressage_segments import audit
from dressage_store import FilesStore

pytestmark = pytest.mark.heavy

KEY = "control-key-of-these-tests"
AUTH = {"Authorization": f"Bearer {KEY}"}


def said(text, role="user"):
    return {"role": role, "content": text}


def body(*texts):
    return {"messages": [said(text, "user" if n % 2 == 0 else "assistant") for n, text in enumerate(texts)]}


class Full:
    """Makes a store's next appends fail as a full disk does."""

    def __init__(self, monkeypatch, store):
        self.failures = 0
        append = store.append

        def failing(session_id, record):
            if self.failures:
                self.failures -= 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            append(session_id, record)

        monkeypatch.setattr(store, "append", failing)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_that_cannot_be_stored_is_not_released_and_the_retry_is(rig, monkeypatch, stream):
    full = Full(monkeypatch, rig.store)
    session = await rig.open()
    full.failures = 1
    refused = await rig.post(session, {**body("hi"), "stream": stream})
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "5"
    assert "abcdefgh"[:2] not in refused.text
    reply = await rig.post(session, body("hi"))
    assert reply.status_code == 200
    trajectory = await rig.end(session)
    assert trajectory.sampled_tokens == trajectory.trained_tokens == 9, "what no log has was never a turn"


async def test_a_full_disk_refuses_a_new_session_and_an_end_and_nothing_is_half_done(rig, monkeypatch):
    full = Full(monkeypatch, rig.store)
    session = await rig.open()
    await rig.chat(session, "hi")
    full.failures = 2
    for path, sent in (("/sessions", {"instance_id": "i"}), (f"/sessions/{session}/finalize", {})):
        refused = await rig.http.post(path, json=sent)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert len(rig.proxy.sessions) == 1
    first = await rig.post(session, body("hi"))
    assert first.status_code == 200, "the session goes on"
    assert (await rig.end(session)).trained_tokens > 0


@pytest.mark.skipif(
    subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode != 0,
    reason="no user namespace to mount a small disk in",
)
def test_a_real_full_disk_loses_no_turn_that_was_seen(spawn, toy_folder, tmp_path, monkeypatch):
    disk = tmp_path / "disk"
    disk.mkdir()
    engine = spawn("dressage_proxy.engine.scripted", "--tokens", "2000").ready["url"]
    script = (
        "trap : TERM; "  # the server's to handle: what it left is copied out after it
        f"mount -t tmpfs -o size=400k none {disk} && {sys.executable} -m dressage_proxy.cli serve "
        f"--tokenizer {toy_folder} --engine {engine} --store {disk}/store --port 0 --log-level error; "
        f"cp -r {disk}/store {tmp_path}/left"
    )
    process = subprocess.Popen(
        ["unshare", "-rm", "sh", "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "DRESSAGE_CONTROL_KEY": KEY},
        start_new_session=True,
    )
    try:
        url = json.loads(process.stdout.readline())["data_url"]
        with httpx.Client(base_url=url, headers=AUTH, timeout=20, trust_env=False) as http:
            session = http.post("/sessions", json={"instance_id": "i"}).json()["session_id"]
            texts = ["turn 0"]
            statuses = []
            while statuses[-2:] != [503, 503]:
                reply = http.post(f"/s/{session}/v1/chat/completions", json=body(*texts))
                statuses.append(reply.status_code)
                if reply.status_code == 200:
                    texts += [reply.json()["choices"][0]["message"]["content"], f"turn {len(statuses)}"]
            assert len(texts) > 3
            assert http.get("/health").status_code == 200
            seen = http.get(f"/sessions/{session}").json()["steps"]
        os.killpg(process.pid, 15)
        process.wait(15)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
        process.wait(10)
        process.stdout.close()
    with FilesStore(tmp_path / "left", read_only=True) as store:
        kinds = [record.kind for record in store.records(session)]
    assert kinds == ["open", *["turn"] * seen]
    assert seen == len(texts) // 2, "what was seen is in the log, and no more"


PASSING = (Fault.DROP, Fault.BUSY, Fault.SERVER_ERROR, Fault.UNAVAILABLE, Fault.FAILED_ABORT, Fault.SLOW)
LYING = (Fault.SHORT_LOGPROBS, Fault.LONG_LOGPROBS, Fault.OTHER_IDS, Fault.WRONG_COUNT, Fault.NULL_LOGPROB)


@pytest.mark.parametrize("fault", PASSING)
async def test_a_fault_that_passes_is_absorbed(rig, fault):
    rig.engine.inject(fault)
    session = await rig.open()
    assert (await rig.post(session, body("hi"))).status_code == 200
    assert (await rig.end(session)).lost_tokens == {}


@pytest.mark.parametrize("fault", LYING)
async def test_a_reply_that_lies_about_its_lengths_is_delivered_and_never_trained(rig, fault):
    rig.engine.inject(fault)
    session = await rig.open()
    first = await rig.post(session, body("hi"))
    assert first.status_code == 200
    text = first.json()["choices"][0]["message"]["content"]
    assert (await rig.post(session, body("hi", text, "on"))).status_code == 200
    trajectory = await rig.end(session)
    assert trajectory.trained_tokens == 9
    assert sum(trajectory.lost_tokens.values()) == 9
    assert audit(rig.store.records(session), trajectory).ok


async def test_a_prompt_that_the_engine_counts_otherwise_is_not_trained(make_rig):
    class Miscounting(ScriptedEngine):
        def _accept(self, payload):
            call = super()._accept(payload)
            call.input_ids = call.input_ids[:-1]  # it saw fewer ids than were sent
            return call

    rig = await make_rig(engine=Miscounting())
    session = await rig.open()
    assert (await rig.post(session, body("hi"))).status_code == 200
    assert (await rig.end(session)).lost_tokens == {"misaligned": 9}


async def test_an_id_of_a_spare_row_of_the_embedding_is_trained_as_it_was_sampled(rig):
    rig.script_raw(Output([rig.codec.vocab_size, 70, rig.codec.stop_token_ids[0]]))
    session = await rig.open()
    reply = await rig.chat(session, "q")
    assert reply.usage.completion_tokens == 3
    rig.script_raw(Output([70, rig.codec.stop_token_ids[0]]))
    await rig.post(session, body("q", reply.choices[0].message.content, "more"))
    trajectory = await rig.end(session)
    assert trajectory.trained_tokens == trajectory.sampled_tokens == 5
    assert len(trajectory.segments) == 1


async def test_an_engine_of_another_model_is_told_by_the_id_that_shows_it(make_rig):
    rig = await make_rig(engine_attempts=2)
    rig.script_raw(Output([2**31 - 1, 70]))
    session = await rig.open()
    reply = await rig.post(session, body("q"))
    assert reply.status_code == 503
    assert reply.headers["retry-after"]
    assert "2147483647" in reply.json()["error"]["message"]
    assert "--tokenizer" in reply.json()["error"]["message"]
    assert (await rig.end(session)).sampled_tokens == 0


async def test_an_engine_that_is_down_is_told_once_it_was_tried_and_comes_back(make_rig):
    rig = await make_rig(engine_attempts=2)
    rig.engine.inject(Fault.UNAVAILABLE, Fault.UNAVAILABLE)
    session = await rig.open()
    refused = await rig.post(session, body("hi"))
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert (await rig.post(session, body("hi"))).status_code == 200
    trajectory = await rig.end(session)
    assert trajectory.lost_tokens == {}


async def test_an_empty_reply_is_a_turn_without_a_trained_token(rig):
    rig.script_raw(Output([], matched=None))
    session = await rig.open()
    assert (await rig.post(session, body("hi"))).status_code == 200
    trajectory = await rig.end(session)
    assert trajectory.sampled_tokens == 0
