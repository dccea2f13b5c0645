"""Public failure cases of the agents' own APIs: what each asks in its dialect, and what it is told."""

import asyncio
import json

import pytest
from dressage_proxy.dialects.memo import Memo
from dressage_proxy.dialects.responses_input import read_input
from dressage_proxy.engine.scripted import Output

RUN = {"type": "object", "properties": {"command": {"type": "string"}}}
PATHS = {"chat": "chat/completions", "responses": "responses", "messages": "messages"}
DIALECTS = list(PATHS)


def body(dialect, *texts, **more):
    """A request of one dialect with a tool ``shell``."""
    said = [{"role": "user", "content": text} if isinstance(text, str) else text for text in texts]
    function = {"name": "shell", "parameters": RUN}
    made = {
        "chat": {"messages": said, "tools": [{"type": "function", "function": function}]},
        "responses": {"input": said, "tools": [{"type": "function", **function}]},
        "messages": {
            "messages": said, "max_tokens": 500, "tools": [{"name": "shell", "input_schema": RUN}]
        },
    }[dialect]  # fmt: skip
    return {"model": "m", **made, **more}


def cap(dialect, tokens):
    return {"max_output_tokens" if dialect == "responses" else "max_tokens": tokens}


async def send(rig, session, dialect, asked):
    reply = await rig.http.post(f"/s/{session}/v1/{PATHS[dialect]}", json=asked)
    assert reply.status_code == 200, reply.text
    return told(dialect, reply.text, stream=bool(asked.get("stream")))


def told(dialect, text, *, stream):
    """Reasoning, text, calls (id, name, arguments) and the reason of the end, whatever the dialect."""
    read = {"chat": of_chat, "responses": of_response, "messages": of_message}[dialect]
    if not stream:
        return read(json.loads(text), None)
    events = [
        json.loads(line.removeprefix("data: ")) for line in text.split("\n") if line.startswith("data: {")
    ]
    return read(None, events)


def of_chat(whole, events):
    if events is None:
        choice = whole["choices"][0]
        message = choice["message"]
        calls = [
            (c["id"], c["function"]["name"], c["function"]["arguments"])
            for c in message.get("tool_calls", [])
        ]
        return message.get("reasoning_content", ""), message["content"] or "", calls, choice["finish_reason"]
    reasoning = text = finish = ""
    calls = {}
    for event in events:
        for choice in event["choices"]:
            delta = choice["delta"]
            reasoning += delta.get("reasoning_content", "")
            text += delta.get("content", "")
            finish = choice["finish_reason"] or finish
            for made in delta.get("tool_calls", []):
                old = calls.get(made["index"], ("", "", ""))
                new = made.get("id", ""), made["function"].get("name", ""), made["function"]["arguments"]
                calls[made["index"]] = tuple(one + other for one, other in zip(old, new, strict=True))
    return reasoning, text, list(calls.values()), finish


def of_response(whole, events):
    if events is not None:
        assert all(event["type"] for event in events)
        assert events[-1]["type"] in ("response.completed", "response.incomplete")
        whole = events[-1]["response"]
    reasoning = text = ""
    calls = []
    for item in whole["output"]:
        if item["type"] == "reasoning":
            reasoning = item["content"][0]["text"]
        elif item["type"] == "message":
            text = item["content"][0]["text"]
        else:
            calls.append((item["call_id"], item["name"], item["arguments"]))
    details = whole["incomplete_details"]
    return reasoning, text, calls, details["reason"] if details else whole["status"]


def of_message(whole, events):
    if events is None:
        blocks, reason = whole["content"], whole["stop_reason"]
    else:
        assert [events[0]["type"], events[-1]["type"]] == ["message_start", "message_stop"]
        blocks = []
        for event in events:
            if event["type"] == "content_block_start":
                blocks.append({**event["content_block"], "json": ""})
            elif event["type"] == "content_block_delta":
                delta, block = event["delta"], blocks[-1]
                for name in ("thinking", "text", "signature"):
                    if name in delta:
                        block[name] += delta[name]
                block["json"] += delta.get("partial_json", "")
        reason = next(e["delta"]["stop_reason"] for e in events if e["type"] == "message_delta")
    said = {"thinking": "", "text": ""}
    calls = []
    for block in blocks:
        if block["type"] == "tool_use":
            calls.append((block["id"], block["name"], block.get("json") or json.dumps(block["input"])))
        else:
            said[block["type"]] += block[block["type"]]
    return said["thinking"], said["text"], calls, reason


CUT = {"chat": "length", "responses": "max_output_tokens", "messages": "max_tokens"}
CALLED = {"chat": "tool_calls", "responses": "completed", "messages": "tool_use"}
ENDED = {"chat": "stop", "responses": "completed", "messages": "end_turn"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_c26_a_cut_turn_says_so_in_each_dialect_and_hands_out_whole_calls_alone(
    rig, call, dialect, stream
):
    first, second = call(command="ls"), call(command="rm -rf build")
    session = await rig.open()
    rig.script(first + "\n" + second)
    many = len(rig.ids(first + "\n")) + 14
    reply = await send(rig, session, dialect, body(dialect, "go", stream=stream, **cap(dialect, many)))
    assert [json.loads(arguments) for _, _, arguments in reply[2]] == [{"command": "ls"}]
    assert reply[3] == CUT[dialect]
    whole = await send(rig, session, dialect, body(dialect, "on", stream=stream))
    assert (len(whole[2]), whole[3]) == (2, CALLED[dialect])
    turn = rig.tree(session).turn(0)
    assert (turn.finish_reason, len(turn.output_ids)) == ("length", many)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_c28_arguments_are_the_same_streamed_and_whole_and_their_text_is_the_models(rig, dialect):
    text = '{"name": "shell", "arguments": {"command":"a \\u00e9 \\n", "n": 1.0,  "ok": true}}'
    rig.script(f"<tool_call>\n{text}\n</tool_call>")
    session = await rig.open()
    whole = await send(rig, session, dialect, body(dialect, "a"))
    streamed = await send(rig, session, dialect, body(dialect, "b", stream=True))
    for _, name, arguments in (*whole[2], *streamed[2]):
        assert name == "shell"
        assert json.loads(arguments) == {"command": "a é \n", "n": 1.0, "ok": True}
    assert streamed[2][0][2] == '{"command":"a \\u00e9 \\n", "n": 1.0,  "ok": true}', "as it was sampled"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_c32_unfinished_thinking_is_no_answer_and_makes_no_call(rig, call, dialect, stream):
    rig.script_raw(Output(rig.ids("<think>\nLet me call " + call(command="rm") + " maybe")))
    session = await rig.open()
    reasoning, text, calls, reason = await send(rig, session, dialect, body(dialect, "go", stream=stream))
    assert reasoning.startswith("Let me call")
    assert (text, calls, reason) == ("", [], CUT[dialect])


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_e07_and_c31_wire_ids_are_alphanumeric_and_never_repeat(rig, call, dialect):
    rig.script(call(command="a") + "\n" + call(command="a"))
    session = await rig.open()
    seen = [
        made[0]
        for number in range(4)
        for made in (await send(rig, session, dialect, body(dialect, f"go {number}")))[2]
    ]
    assert len(set(seen)) == len(seen) == 8
    assert all(wire.isalnum() for wire in seen)


def block(kind, **fields):
    return {"type": kind, **fields}


async def test_c20_a_user_message_that_mixes_results_and_text_loses_nothing(rig, call):
    rig.script(call(command="one") + "\n" + call(command="two"), "done")
    session = await rig.open()
    _, _, calls, _ = await send(rig, session, "messages", body("messages", "go"))
    (one, _, _), (two, _, _) = calls
    uses = [block("tool_use", id=i, name=n, input=json.loads(a)) for i, n, a in calls]
    listed = [block("text", text="line 1"), block("text", text="line 2")]
    mixed = [
        block("text", text="note"),
        block("tool_result", tool_use_id=two, content="second"),
        block("text", text="mid"),
        block("tool_result", tool_use_id=one, is_error=True, content=listed),
        block("text", text="go on"),
    ]
    history = ["go", {"role": "assistant", "content": uses}, {"role": "user", "content": mixed}]
    for _ in range(2):
        await send(rig, session, "messages", body("messages", *history))
    prompt = rig.codec.decode(rig.engine.requests[1].input_ids)
    added = prompt[prompt.rindex("</tool_call>") :]
    order = [added.index(text) for text in ("second", "[error] line 1\nline 2", "note\nmid\ngo on")]
    assert order == sorted(order), "results directly after the calls, then the text in its own order"
    assert rig.engine.requests[1].input_ids == rig.engine.requests[2].input_ids
    image = [*mixed, block("image", source={"type": "url", "url": "x"})]
    asked = body("messages", *history[:2], {"role": "user", "content": image})
    reply = await rig.http.post(f"/s/{session}/v1/messages", json=asked)
    assert reply.status_code == 400, "an image is refused, not dropped"
    assert len((await rig.end(session)).segments) == 1


async def test_c21_a_nonce_in_the_first_system_block_leaves_one_segment(rig):
    session = await rig.open()
    history = ["go"]
    for nonce, day in (("aa01", "Mon"), ("bb02", "Tue")):
        system = [
            block("text", text=f"x-vendor-billing: v=1; nonce={nonce};"),
            block("text", text=f"Today: {day}"),
            block("text", text="Be good. x-vendor-billing: stays"),
        ]
        _, text, _, _ = await send(rig, session, "messages", body("messages", *history, system=system))
        history += [{"role": "assistant", "content": text}, "on"]
    prompt = rig.codec.decode(rig.engine.requests[1].input_ids)
    assert "aa01" in prompt
    assert "Mon" in prompt
    assert "bb02" not in prompt
    assert "x-vendor-billing: stays" in prompt
    changed = [*system[:2], block("text", text="Be better.")]
    await send(rig, session, "messages", body("messages", *history, system=changed))
    assert len((await rig.end(session)).segments) == 2, "what is not in the list still cuts"


async def test_c21_a_date_in_a_later_system_message_has_a_first_value_of_its_own_place(rig):
    session = await rig.open()
    lead = {"role": "system", "content": "Today: Mon"}
    later = {"role": "system", "content": "Today: Tue"}
    await send(
        rig, session, "messages", body("messages", "go", later, system=[block("text", text=lead["content"])])
    )
    prompt = rig.codec.decode(rig.engine.requests[0].input_ids)
    assert "Today: Mon" in prompt
    assert "Today: Tue" in prompt, "news in mid-conversation is not replaced"


def turns(*items):
    return [
        (message["role"], message.get("content"), [c["id"] for c in message.get("tool_calls", [])])
        for message in read_input({"input": list(items)}, Memo(), {})[0]
    ]


def said(role, text):
    return {"type": "message", "role": role, "content": text}


def function_call(name):
    return {"type": "function_call", "call_id": name, "name": "shell", "arguments": "{}"}


def output(name):
    return {"type": "function_call_output", "call_id": name, "output": name}


def thought(handle, text="r"):
    return {"type": "reasoning", "summary": [block("summary_text", text=text)], "encrypted_content": handle}


def test_c23_the_items_of_one_turn_are_one_message_and_two_turns_stay_two():
    made = turns(
        said("user", "u"), thought("h1"), said("assistant", "I will look"), function_call("c1"),
        function_call("c2"), output("c2"), output("c1"),
    )  # fmt: skip
    assert made == [
        ("user", "u", []),
        ("assistant", "I will look", ["c1", "c2"]),
        ("tool", "c2", []),
        ("tool", "c1", []),
    ]
    for order in (
        [thought("h1"), function_call("c1"), said("assistant", "I will look"), function_call("c2")],
        [thought("h1"), function_call("c1"), function_call("c2"), said("assistant", "I will look")],
        [said("assistant", "I will look"), function_call("c1"), thought("h1"), function_call("c2")],
        [said("assistant", "I will "), function_call("c1"), said("assistant", "look"), function_call("c2")],
    ):
        assert turns(said("user", "u"), *order, output("c2"), output("c1")) == made, order
    (apart, *_) = turns(
        said("user", "u"), thought("h1"), function_call("c1"), thought("h2"), function_call("c2")
    )[1:]
    assert apart == ("assistant", "", ["c1"]), "another handle is another turn"
    two = turns(
        said("user", "u"), thought("h1"), said("assistant", "a"), thought("h2"), said("assistant", "b")
    )
    assert two == [("user", "u", []), ("assistant", "a", []), ("assistant", "b", [])]
    assert turns(said("user", "u"), said("assistant", "a"), said("assistant", "b"), said("user", "v")) == [
        ("user", "u", []),
        ("assistant", "a", []),
        ("assistant", "b", []),
        ("user", "v", []),
    ]


async def test_c23_a_turn_of_several_items_renders_to_the_ids_that_were_sampled(rig, call):
    rig.script("<think>\nr\n</think>\n\nI will look\n" + call(command="a") + "\n" + call(command="b"), "done")
    session = await rig.open()
    items = [said("user", "go")]
    reply = await rig.http.post(f"/s/{session}/v1/responses", json=body("responses", *items))
    made = reply.json()["output"]
    results = [output(item["call_id"]) for item in made if item["type"] == "function_call"]
    for item in made:
        item.pop("content" if item["type"] == "reasoning" else "id")
    await send(rig, session, "responses", body("responses", *items, *made, *results[::-1]))
    first, second = rig.engine.requests
    whole = first.input_ids + first.output_ids
    assert second.input_ids[: len(whole)] == whole
    (segment,) = (await rig.end(session)).segments
    assert segment.trained_tokens == len(first.output_ids) + len(second.output_ids)


async def test_c24_instructions_and_developer_items_lead_and_a_later_one_stays(rig):
    session = await rig.open()
    asked = body("responses", said("developer", "A2"), said("user", "go"), instructions="A")
    _, text, _, _ = await send(rig, session, "responses", asked)
    asked["input"] += [said("assistant", text), said("developer", "B"), said("user", "on")]
    await send(rig, session, "responses", asked)
    prompt = rig.codec.decode(rig.engine.requests[1].input_ids)
    assert "A\n\nA2" in prompt
    assert prompt.index("go") < prompt.index("B<|im_end|>") < prompt.index("on<|im_end|>")
    assert len((await rig.end(session)).segments) == 1


@pytest.mark.parametrize("dialect", ["responses", "messages"])
async def test_c58_the_same_turn_after_a_broken_stream_has_one_live_answer(rig, dialect):
    session = await rig.open()
    rig.engine.hold_after = 1
    streamed = asyncio.create_task(send(rig, session, dialect, body(dialect, "go", stream=True)))
    await rig.engine.until_running(1)
    streamed.cancel()
    await asyncio.gather(streamed, return_exceptions=True)
    while (await rig.http.get(f"/sessions/{session}")).json()["in_flight"]:
        await asyncio.sleep(0.001)
    await rig.engine.release()
    _, text, _, _ = await send(rig, session, dialect, body(dialect, "go"))
    assert text
    trajectory = await rig.end(session)
    assert len(trajectory.segments) == 1
    assert set(trajectory.lost_tokens) <= {"undelivered"}
    assert trajectory.trained_tokens == len(rig.engine.requests[-1].output_ids)


@pytest.mark.parametrize("dialect", ["responses", "messages"])
async def test_c58_the_same_turn_while_the_first_attempt_runs_gets_the_one_answer(rig, dialect):
    session = await rig.open()
    rig.engine.hold_after = 1
    attempts = [
        asyncio.create_task(send(rig, session, dialect, body(dialect, "go", stream=stream)))
        for stream in (True, False)
    ]
    while not any(made.waiters == 2 for made in rig.proxy.pipeline.attempts.joinable.values()):
        await asyncio.sleep(0)
    await rig.engine.until_running(1)
    await rig.engine.release()
    one, two = await asyncio.gather(*attempts)
    assert one == two
    assert len(rig.engine.requests) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_e11_an_error_before_the_first_token_is_a_real_status_and_never_an_empty_stream(
    make_rig, dialect
):
    rig = await make_rig(engines=("http://127.0.0.1:9",), engine_attempts=1)
    session = await rig.open()
    asked = body(dialect, "go", stream=True)
    reply = await rig.http.post(f"/s/{session}/v1/{PATHS[dialect]}", json=asked)
    assert reply.status_code == 503
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["retry-after"]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_e11_a_failure_of_the_proxy_itself_says_when_to_come_back(rig, monkeypatch, dialect):
    def fails(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr(type(rig.proxy.pipeline), "join", fails)
    session = await rig.open()
    asked = body(dialect, "go", stream=True)
    reply = await rig.http.post(f"/s/{session}/v1/{PATHS[dialect]}", json=asked)
    assert reply.status_code == 500
    assert int(reply.headers["retry-after"]) >= 1
    assert "broken" not in reply.text


@pytest.mark.parametrize(
    ("dialect", "last"), [("chat", "error"), ("responses", "response.failed"), ("messages", "error")]
)
async def test_e11_an_error_in_a_started_stream_ends_it_in_the_dialects_own_event(make_rig, dialect, last):
    rig = await make_rig(keepalive_s=0.01, engine_attempts=2, max_output_tokens=50)
    rig.engine.hold_after = 1
    session = await rig.open()
    asked = body(dialect, "go", stream=True)
    lines = []
    async with rig.http.stream("POST", f"/s/{session}/v1/{PATHS[dialect]}", json=asked) as reply:
        assert reply.status_code == 200
        async for line in reply.aiter_lines():
            lines.append(line)
            if len(lines) == 4:
                await rig.http.delete(f"/sessions/{session}")
    event = json.loads([line for line in lines if line.startswith("data: ")][-1].removeprefix("data: "))
    assert (event["type"] if dialect != "chat" else "error" in event and "error") == last
    assert "ended" in json.dumps(event)


@pytest.mark.parametrize("dialect", ["responses", "messages"])
async def test_e11_an_empty_reply_is_still_a_whole_stream(rig, dialect):
    rig.script("")
    session = await rig.open()
    assert await send(rig, session, dialect, body(dialect, "go", stream=True)) == ("", "", [], ENDED[dialect])


async def test_c60_a_message_that_is_gone_next_turn_cuts_and_earlier_turns_keep_their_ids(rig, call):
    rig.script("<think>\nhm\n</think>\n\nI look\n" + call(command="a"), "second", "third")
    session = await rig.open()
    history, noise = [said("user", "[10:01] hi")], said("user", "<<<INTERNAL CONTEXT>>>")
    for number in range(3):
        asked = body("responses", *history, noise)
        made = (await rig.http.post(f"/s/{session}/v1/responses", json=asked)).json()["output"]
        history += [*made, *(output(i["call_id"]) for i in made if i["type"] == "function_call")]
        history.append(said("user", f"next {number}"))
    first, _, third = rig.engine.requests
    flat = ",".join(map(str, third.input_ids))
    assert ",".join(map(str, first.output_ids)) in flat, "the ids that were sampled, in another context"
    trajectory = await rig.end(session)
    assert [s.cut_reason for s in trajectory.segments] == ["", "history_changed", "history_changed"]
    assert trajectory.trained_tokens == trajectory.sampled_tokens
    for segment, request in zip(trajectory.segments, rig.engine.requests, strict=True):
        assert not segment.loss_mask[: len(request.input_ids)].any(), "copied context is not trained again"
