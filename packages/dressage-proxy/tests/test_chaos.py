"""Agents of every dialect that leave, ask twice and break off, over an engine that fails, while the rollout
is paused again and again: whatever happens, each token is accounted for once and nothing stays behind."""

import asyncio
import json
import random
from collections import Counter

import httpx
import pytest
from dressage_proxy.engine.scripted import Fault
from dressage_segments import audit

pytestmark = pytest.mark.heavy

SHELL = {"name": "shell", "parameters": {"type": "object"}}
TEXTS = (
    "ok then",
    "<think>\nhm\n</think>\n\nsaid",
    'go\n<tool_call>\n{"name": "shell", "arguments": {"a": 1}}\n</tool_call>',
)
FAULTS = (Fault.SERVER_ERROR, Fault.DROP, Fault.BUSY, Fault.NO_JSON, Fault.SHORT_LOGPROBS)
ALLOWED = {200, 404, 410, 429, 502, 503}  # 502: one engine, and what it answered is no JSON


class Chat:
    """An agent's history and how it asks; ``took`` the answer that it goes on from."""

    route = "chat/completions"
    tools = ({"type": "function", "function": SHELL},)

    def __init__(self):
        self.history = [{"role": "user", "content": "go"}]

    def body(self):
        return {"model": "m", "messages": self.history, "tools": self.tools}

    def took(self, reply):
        message = reply["choices"][0]["message"]
        self.history.append(message)
        calls = message.get("tool_calls") or []
        self.history += [{"role": "tool", "tool_call_id": call["id"], "content": "r"} for call in calls]
        if not calls:
            self.history.append({"role": "user", "content": "next"})


class Messages(Chat):
    route = "messages"
    tools = ({"name": "shell", "input_schema": {"type": "object"}},)

    def body(self):
        return {**super().body(), "max_tokens": 60}

    def took(self, reply):
        self.history.append({"role": "assistant", "content": reply["content"]})
        calls = [block["id"] for block in reply["content"] if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call, "content": "r"} for call in calls]
        self.history.append({"role": "user", "content": results or "next"})


class Responses(Chat):
    route = "responses"
    tools = ({"type": "function", **SHELL},)

    def body(self):
        return {"model": "m", "input": self.history, "tools": self.tools}

    def took(self, reply):
        self.history += reply["output"]
        calls = [item["call_id"] for item in reply["output"] if item["type"] == "function_call"]
        self.history += [{"type": "function_call_output", "call_id": call, "output": "r"} for call in calls]
        if not calls:
            self.history.append({"role": "user", "content": "next"})


class World:
    """All agents over one proxy."""

    def __init__(self, rig, seed):
        self.rig = rig
        self.random = random.Random(seed)
        self.seen = Counter()

    async def ask(self, session, agent):
        """One request: whole or streamed, and now and then its client is gone before the answer."""
        body = {**agent.body(), "stream": self.random.random() < 0.5}
        patience = self.random.random() * 0.04 if self.random.random() < 0.2 else 20
        asked = self.rig.http.post(f"/s/{session}/v1/{agent.route}", json=body)
        try:
            reply = await asyncio.wait_for(asked, patience)
        except (TimeoutError, httpx.HTTPError):
            self.seen["left"] += 1
            return None
        self.seen[reply.status_code] += 1
        assert reply.status_code in ALLOWED, reply.text
        if reply.status_code in (429, 503):
            assert reply.headers["retry-after"]
        return None if reply.status_code != 200 or body["stream"] else json.loads(reply.text)

    async def run(self):
        """One session from its start to its end; its id where it has a trajectory."""
        session = await self.rig.open()
        agent = self.random.choice([Chat, Messages, Responses])()
        for _ in range(self.random.randrange(2, 7)):
            if self.random.random() < 0.1:
                self.rig.engine.inject(self.random.choice(FAULTS))
            twice = range(self.random.choice([1, 1, 2, 3]))
            replies = [r for r in await asyncio.gather(*(self.ask(session, agent) for _ in twice)) if r]
            if replies:
                agent.took(self.random.choice(replies))
        late = asyncio.create_task(self.ask(session, agent))
        await asyncio.sleep(self.random.random() * 0.01)
        if self.random.random() < 0.15:
            reply = await self.rig.http.delete(f"/sessions/{session}")
        else:
            reply = await self.rig.http.post(f"/sessions/{session}/finalize")
        await late
        assert reply.status_code in (200, 204), reply.text
        return session if reply.status_code == 200 else None

    async def pause(self):
        """Pause and resume under the next version, for ever."""
        version = 0
        while True:
            await asyncio.sleep(0.1)
            paused = (await self.rig.http.post("/rollout/pause", json={"timeout_s": 5})).json()
            assert paused["quiesced"]
            self.seen["preempted"] += paused["preempted"]
            version += 1
            await self.rig.http.post("/rollout/resume", json={"version": version})


@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_agents_engine_and_pauses_do_each_token_is_accounted_for_once(make_rig, seed):
    rig = await make_rig(max_in_flight=12, keepalive_s=0.01)
    world = World(rig, seed)
    outputs = [rig.ids(text + "<|im_end|>") for text in TEXTS]
    rig.engine.policy = lambda *_: world.random.choice(outputs)
    rig.engine.delay_s = 0.005
    pausing = asyncio.create_task(world.pause())
    async with asyncio.timeout(60):
        sessions = [s for _ in range(2) for s in await asyncio.gather(*(world.run() for _ in range(12)))]
        pausing.cancel()
        await asyncio.gather(pausing, return_exceptions=True)
        await rig.http.post("/rollout/resume", json={"version": 1000})
    controller = rig.proxy.controller
    assert (rig.engine.running, controller.in_flight, controller.waiting) == (0, 0, 0)
    assert min(world.seen["left"], world.seen[200], world.seen["preempted"]) > 0, world.seen
    for session in filter(None, sessions):
        trajectory = rig.store.read(session)
        report = audit(rig.store.records(session), trajectory)
        assert report.ok, report.findings
        assert trajectory.sampled_tokens == trajectory.trained_tokens + sum(trajectory.lost_tokens.values())
