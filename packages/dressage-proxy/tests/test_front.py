"""What the one control plane over all shards remembers for a shard that starts again, and for itself."""

import asyncio
import json

import pytest
from dressage_proxy.gate import GateFile, GateState
from dressage_proxy.shards.forward import Answer
from dressage_proxy.shards.front import Front

RUNNING = GateState()


class Shard:
    """A shard that answers all with one status, and sees what one that starts at that moment is told."""

    def __init__(self, status=200):
        self.status = status
        self.file = None
        self.told = None
        self.asked = []
        self.meanwhile = None
        self.hangs = False

    async def forward(self, scope, receive, send):
        self.asked.append((scope["path"], None))
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def ask(self, method, path, body, headers, patience_s):
        self.patience = patience_s
        if self.hangs:
            await asyncio.Event().wait()
        self.told = self.file.read()
        self.asked.append((path, json.loads(body) if body else None))
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        if self.status is None:
            raise OSError("nobody there")
        counts = {"quiesced": True, "preempted": 0, "waiting": 0, "in_flight": 0}
        reply = {**counts, "state": "running", "version": 3}
        return Answer(self.status, {}, json.dumps(reply).encode())


def front_of(gate, *shards, up=lambda _: True):
    return Front(shards, gate, up)


@pytest.fixture
def gate(tmp_path):
    return GateFile(tmp_path / "gate.json")


async def ask(front, method, path, body=None):
    sent = []

    async def receive():
        return {"type": "http.request", "body": json.dumps(body).encode()}

    async def send(message):
        sent.append(message)

    await front({"type": "http", "method": method, "path": path, "headers": []}, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


async def told(gate, path, body, status):
    """What a shard was told that starts meanwhile, what is kept after, and the reply."""
    shard = Shard(status)
    shard.file = gate
    reply = await ask(front_of(gate, shard), "POST", f"/rollout/{path}", body)
    return shard.told, gate.read(), reply[0]


@pytest.mark.parametrize("status", [200, 503, None])
@pytest.mark.parametrize(
    ("path", "body", "state"),
    [
        ("pause", {"timeout_s": 1}, GateState(paused=True)),
        ("pause", {}, GateState(paused=True)),
        ("resume", {"version": 3}, GateState(version=3)),
    ],
)
async def test_a_shard_that_starts_meanwhile_or_after_is_told_what_is_asked_of_all(
    gate, path, body, state, status
):
    assert await told(gate, path, body, status) == (state, state, status or 503)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("pause", {"timeout_s": -1}),
        ("pause", {"timeout": 1}),
        ("pause", []),
        ("resume", {"version": True}),
        ("resume", {"version": 2**31}),
        ("resume", {"version": 3, "now": 1}),
    ],
)
async def test_a_shard_that_starts_meanwhile_is_told_nothing_that_all_refuse(gate, path, body):
    assert await told(gate, path, body, 422) == (RUNNING, RUNNING, 422)


async def test_a_refusal_by_all_leaves_the_state_as_it_was(gate):
    assert await told(gate, "pause", {"timeout_s": 1}, 401) == (GateState(paused=True), RUNNING, 401)


async def test_a_front_that_starts_again_tells_what_was_asked_before_it_ended(gate):
    gate.write(GateState(paused=True, version=7))
    front = front_of(gate, Shard())
    assert json.loads(front.state) == {
        "schema": "dressage.gate/1", "paused": True, "sessions": [], "version": 7,
    }  # fmt: skip


async def test_a_lower_version_is_refused_and_no_shard_asked(gate):
    gate.write(GateState(paused=True, version=7))
    shard = Shard()
    status, reply = await ask(front_of(gate, shard), "POST", "/rollout/resume", {"version": 6})
    assert (status, reply["error"]["code"], reply["error"]["field"]) == (409, "version_went_back", "version")
    assert reply["error"]["fix"]
    assert (shard.asked, gate.read()) == ([], GateState(paused=True, version=7))


async def test_what_cannot_be_noted_is_not_asked(gate, tmp_path):
    shard = Shard()
    front = front_of(GateFile(tmp_path / "nowhere" / "gate.json"), shard)
    status, reply = await ask(front, "POST", "/rollout/pause", {})
    assert (status, reply["error"]["code"], shard.asked) == (503, "store_failed", [])


@pytest.mark.parametrize(
    ("first", "then", "said_again"),
    [
        (("pause", {}), ("resume", {"version": 3}), ("/rollout/resume", {"version": 3})),
        (("resume", {"version": 3}), ("pause", {}), ("/rollout/pause", {"timeout_s": 0.0})),
    ],
)
async def test_what_was_asked_while_shards_were_told_is_said_again(gate, first, then, said_again):
    """Which of the two came last to a shard is not known."""
    shard = Shard()
    shard.file = gate
    front = front_of(gate, shard)
    shard.meanwhile = lambda: ask(front, "POST", f"/rollout/{then[0]}", then[1])
    await ask(front, "POST", f"/rollout/{first[0]}", first[1])
    assert shard.asked[-1] == said_again
    assert gate.read() == (GateState(version=3) if then[0] == "resume" else GateState(True, version=3))


async def test_what_was_asked_while_shards_were_reminded_is_said_again_too(gate):
    shard = Shard()
    shard.file = gate
    front = front_of(gate, shard)

    async def resume():
        await ask(front, "POST", "/rollout/resume", {"version": 3})
        shard.meanwhile = lambda: ask(front, "POST", "/rollout/pause", {})  # while it is said again

    shard.meanwhile = resume
    await ask(front, "POST", "/rollout/pause", {})
    assert gate.read() == GateState(True, version=3)
    assert [path for path, _ in shard.asked] == [
        "/rollout/pause", "/rollout/resume", "/rollout/resume", "/rollout/pause", "/rollout/pause",
    ]  # fmt: skip


async def test_what_was_asked_while_a_shard_was_away_stays(gate):
    shard = Shard(None)
    shard.file = gate
    front = front_of(gate, shard)
    shard.meanwhile = lambda: asyncio.wait_for(ask(front, "POST", "/rollout/resume", {"version": 3}), 5)
    status, _ = await ask(front, "POST", "/rollout/pause", {})
    assert (status, gate.read()) == (503, GateState(version=3))


@pytest.mark.parametrize("here", [0, 1])
async def test_a_pause_and_a_resume_do_not_wait_for_a_shard_that_is_away(gate, here):
    """It has nothing in flight, and is told when it starts, before it takes a request."""
    shards = [Shard(None), Shard(None)]
    for shard in shards:
        shard.file = gate
    shards[here].status = 200
    front = front_of(gate, *shards, up=lambda shard: shard == here)
    status, paused = await ask(front, "POST", "/rollout/pause", {"timeout_s": 1})
    assert (status, paused) == (200, {"quiesced": True, "preempted": 0, "waiting": 0})
    assert shards[1 - here].patience == 0.0
    assert shards[here].patience is None
    assert gate.read().paused
    status, resumed = await ask(front, "POST", "/rollout/resume", {"version": 3})
    assert (status, resumed["state"], resumed["version"]) == (200, "running", 3)
    for shard in shards:
        shard.status = None
    nobody = front_of(gate, *shards, up=lambda _: False)
    for path, body in (("pause", {"timeout": 1}), ("resume", {"version": "3"})):
        refused, _ = await ask(nobody, "POST", f"/rollout/{path}", body)
        assert refused == 503, "what every shard would refuse is no pause"


async def test_a_shard_that_is_there_and_does_not_answer_is_no_quiet_one(gate):
    silent = Shard(None)
    silent.file = gate
    assert (await ask(front_of(gate, silent), "POST", "/rollout/pause", {"timeout_s": 1}))[0] == 503


@pytest.mark.parametrize("away", [(), (1,), (0, 2), (0, 1, 2)])
async def test_sessions_are_opened_in_turn_past_shards_that_restart(gate, away):
    shards = [Shard() for _ in range(3)]
    front = front_of(gate, *shards, up=lambda index: index not in away)
    for _ in range(6):
        assert (await ask(front, "POST", "/sessions", {}))[0] == 201
    opened = [len(shard.asked) for shard in shards]
    up = [index for index in range(3) if index not in away] or [0, 1, 2]
    assert opened == [6 // len(up) if index in up else 0 for index in range(3)]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/ready", None),
        ("GET", "/rollout", None),
        ("POST", "/rollout/pause", {"timeout_s": 0.01}),
        ("POST", "/rollout/resume", {"version": 1}),
    ],
)
async def test_a_shard_that_hangs_is_as_one_that_is_away(gate, monkeypatch, method, path, body):
    monkeypatch.setattr("dressage_proxy.shards.front._PROBE_ANSWER_S", 0.05)
    monkeypatch.setattr("dressage_proxy.shards.front._ANSWER_S", 0.05)
    shard = Shard()
    shard.file, shard.hangs = gate, True
    async with asyncio.timeout(5):
        status, reply = await ask(front_of(gate, shard), method, path, body)
    assert status == 503
    assert reply["shards"] == [None] if path == "/ready" else reply["error"]["code"] == "shard_unavailable"
