"""What the one control plane over all shards remembers for a shard that starts again."""

import json

import pytest
from dressage_proxy.shards.forward import Answer
from dressage_proxy.shards.front import Front


class Shard:
    """A shard that answers all with one status, and sees what one that starts at that moment is told."""

    def __init__(self, status):
        self.status = status
        self.front = None
        self.told = None

    async def ask(self, method, path, body, headers, patience_s):
        self.told = json.loads(self.front.state)
        counts = {"quiesced": True, "preempted": 0, "waiting": 0, "in_flight": 0}
        reply = {**counts, "state": "running", "version": 3}
        return Answer(self.status, {}, json.dumps(reply).encode())


async def asked(path, body, status):
    shard = Shard(status)
    front = shard.front = Front([shard])

    async def receive():
        return {"type": "http.request", "body": json.dumps(body).encode()}

    async def send(_):
        pass

    scope = {"type": "http", "method": "POST", "path": f"/rollout/{path}", "headers": []}
    await front(scope, receive, send)
    return shard.told, json.loads(front.state)


RUNNING = {"paused": False, "version": None}


@pytest.mark.parametrize(
    ("path", "body", "state"),
    [
        ("pause", {"timeout_s": 1}, {"paused": True, "version": None}),
        ("pause", {}, {"paused": True, "version": None}),
        ("resume", {"version": 3}, {"paused": False, "version": 3}),
    ],
)
async def test_a_shard_that_starts_meanwhile_is_told_what_is_asked_of_all(path, body, state):
    assert await asked(path, body, 200) == (state, state)
    assert await asked(path, body, 503) == (state, RUNNING)


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
async def test_a_shard_that_starts_meanwhile_is_told_nothing_that_all_refuse(path, body):
    assert await asked(path, body, 422) == (RUNNING, RUNNING)
