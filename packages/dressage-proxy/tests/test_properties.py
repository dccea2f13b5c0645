"""P1-P3 and P5 over random conversations through a real proxy: retries, forks, rewrites, calls, faults."""

import asyncio
import hashlib

import httpx
import numpy as np
from dressage_proxy.engine.scripted import Fault, Output
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=12)
MARKUP = st.sampled_from(
    ["<|im_end|>", "<tool_call>", "</think>", "<think>\nwell\n</think>\n\nyes", " two  blanks ", "\n\n", ""]
)
CALLS = st.lists(st.sampled_from(["ls", "cat é", '{"a": 1.0}', "<b>&"]), min_size=1, max_size=3)
STEP = st.fixed_dictionaries(
    {
        "move": st.sampled_from(["extend", "extend", "extend", "retry", "fork", "rewrite", "fresh", "leave"]),
        "at": st.integers(0, 50),
        "user": TEXTS | MARKUP,
        "reply": TEXTS | MARKUP,
        "calls": st.none() | CALLS,
        "cut": st.none() | st.integers(1, 6),
        "fault": st.none() | st.sampled_from([Fault.NO_LOGPROBS, Fault.SHORT_LOGPROBS, Fault.BUSY]),
        "tools": st.booleans(),
        "stream": st.booleans(),
        "echo": st.sampled_from(["whole", "no reasoning", "null content", "blocks"]),
    }
)


class Talk:
    """Drives one session; every history that had a reply may be gone on with."""

    def __init__(self, rig, session, shell, call):
        self.rig, self.session, self.shell, self.call = rig, session, shell, call
        self.histories = [[]]
        self.failed = 0

    async def step(self, step):
        base = self.histories[step["at"] % len(self.histories)]
        messages = self.next_messages(step, base)
        self.prepare(step)
        body = {"messages": messages, "stream": step["stream"]}
        if step["tools"]:
            body["tools"] = [self.shell]
        if step["cut"]:
            body["max_tokens"] = step["cut"]
        if step["move"] == "leave":
            await self.leave(body)
            return
        reply = await self.rig.post(self.session, body)
        assert reply.status_code == 200, (reply.text, messages)
        if not step["stream"]:
            message = reply.json()["choices"][0]["message"]
            self.histories.append([*messages, echoed(message, step["echo"])])

    def next_messages(self, step, base):
        user = {"role": "user", "content": step["user"]}
        match step["move"]:
            case "retry" if base:
                return base[:-1]
            case "rewrite" if base:
                return [{"role": "user", "content": "rewritten " + step["user"]}, *base[1:], user]
            case "fork" if len(base) > 2:
                return [*base[:2], user]
            case "fresh":
                return [{"role": "system", "content": "s" + step["user"]}, user]
        results = [
            {"role": "tool", "tool_call_id": made["id"], "content": step["user"]}
            for made in (base[-1].get("tool_calls", []) if base else [])
        ]
        return [*base, *results, user]

    def prepare(self, step):
        text = step["reply"]
        if step["calls"]:
            text += "\n".join(["", *(self.call(command=command) for command in step["calls"])])
        stop = self.rig.codec.stop_token_ids[0]
        ids = [token for token in self.rig.ids(text) if token != stop]
        output = Output([*ids, stop], matched=stop)
        self.rig.engine.policy = lambda *_: output
        if step["fault"]:
            self.rig.engine.inject(step["fault"])

    async def leave(self, body):
        """The client goes while the engine samples."""
        self.rig.engine.hold_after = 1
        before = len(self.rig.engine.requests)
        task = asyncio.create_task(self.rig.post(self.session, body))
        while len(self.rig.engine.requests) == before and not task.done():
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await self.rig.engine.release()
        while (await self.rig.http.get(f"/sessions/{self.session}")).json()["in_flight"]:
            await asyncio.sleep(0)


def echoed(message, how):
    message = {name: value for name, value in message.items() if value is not None}
    if how == "no reasoning":
        message.pop("reasoning_content", None)
    elif how == "null content" and not message.get("content"):
        message["content"] = None
    elif how == "blocks" and message.get("content"):
        message["content"] = [{"type": "text", "text": message["content"]}]
    return message


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEP, min_size=1, max_size=10))
async def test_p1_p2_p3_p5_hold_for_any_conversation(rig, shell, call, steps):
    rig.engine.requests.clear()
    rig.engine.hold_after = None
    session = await rig.open()
    talk = Talk(rig, session, shell, call)
    for step in steps:
        await talk.step(step)
    tree = rig.tree(session)
    trajectory = await rig.end(session, outcome={"reward": 1.0})
    sent = {request.rid: request for request in rig.engine.requests}
    check_prompts(tree, sent)
    check_segments(trajectory, sent)
    check_accounts(tree, trajectory, sent)


def check_prompts(tree, sent):
    """Each engine request is exactly the recorded walk, by value and by the digest kept of it."""
    for turn in tree.turns:
        prompt = tree.prompt_ids(turn.index)
        for call in turn.calls:
            request = sent[call.call_id]
            assert request.input_ids[: len(prompt)] == prompt.tolist()
            data = np.asarray(request.input_ids, "<i4").tobytes()
            assert hashlib.blake2b(data, digest_size=16).hexdigest() == call.prompt_digest
        if turn.parent >= 0:
            whole = tree.ids(turn.parent)
            assert prompt[: len(whole)].tolist() == whole.tolist()


def check_segments(trajectory, sent):
    """P1 and P5 from the segment's own columns: each sampled token stands after the engine's own prompt."""
    for segment in trajectory.segments:
        for place in np.flatnonzero(segment.origin == 1):
            request = sent[segment.calls[segment.call[place]]]
            offset = int(segment.offset[place])
            assert segment.token_ids[place] == request.output_ids[offset]
            if offset == 0:
                assert segment.token_ids[:place].tolist() == request.input_ids
        assert (segment.version[segment.loss_mask == 1] == 0).all()


def check_accounts(tree, trajectory, sent):
    """P2: what was sampled is trained in one place or lost under a cause."""
    answered = [request for request in sent.values() if request.finish]
    assert tree.sampled_tokens == sum(len(request.output_ids) for request in answered)
    trained = [
        (segment.calls[segment.call[place]], int(segment.offset[place]))
        for segment in trajectory.segments
        for place in np.flatnonzero(segment.loss_mask)
    ]
    assert len(set(trained)) == len(trained) == trajectory.trained_tokens
    assert trajectory.sampled_tokens == trajectory.trained_tokens + sum(trajectory.lost_tokens.values())
    assert set(trajectory.lost_tokens) <= {"retry", "undelivered", "missing_logprobs", "misaligned"}


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["messages", "role", "content", "tools", "stop", "stream", "max_tokens", "x"]),
        inner, max_size=4,
    ),
    max_leaves=12,
))  # fmt: skip
async def test_no_body_is_answered_with_anything_but_a_reply_or_a_named_4xx(rig, body):
    session = await rig.open()
    for shape in (body, {"messages": body}, {"messages": [{"role": "user", "content": body}]}):
        try:
            reply = await rig.post(session, shape)
        except (OverflowError, ValueError, httpx.InvalidURL):  # no JSON can be made of it
            return
        assert reply.status_code in (200, 400), reply.text
