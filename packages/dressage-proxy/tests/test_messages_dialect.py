"""The Anthropic Messages dialect through the official client, and on the wire."""

import json

import anthropic
import pytest
from dressage_proxy.engine.scripted import Output

BASH = {
    "name": "Bash",
    "description": "run a command",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
}


def claude(rig, session):
    """The official client."""
    client = anthropic.AsyncAnthropic(
        base_url=f"{rig.url}/s/{session}",
        api_key="unused",
        max_retries=0,
        timeout=20,
        http_client=anthropic.DefaultAsyncHttpxClient(verify=False, trust_env=False),
    )
    rig.stack.push_async_callback(client.close)
    return client


def user(content):
    return {"role": "user", "content": content}


def assistant(message):
    return {
        "role": "assistant",
        "content": [block.model_dump(exclude_none=True) for block in message.content],
    }


def result(call, content="ok", **more):
    return {"type": "tool_result", "tool_use_id": call.id, "content": content, **more}


async def collect(client, **body):
    """A message from its stream, put together by the official client, and the raw events."""
    events = []
    async with client.messages.stream(model="m", max_tokens=9000, **body) as stream:
        async for event in stream:
            events.append(event)
        return await stream.get_final_message(), events


async def test_a_conversation_with_thinking_and_parallel_calls_is_one_segment_of_sampled_ids(rig, call):
    rig.script(
        "<think>\nlet me see\n</think>\n\nI look." + "\n" + call("Bash", command="a") + "\n"
        + call("Bash", command="b"),
        "done",
    )  # fmt: skip
    session = await rig.open()
    client = claude(rig, session)
    body = {"system": "Be good.", "tools": [BASH]}
    first, events = await collect(client, messages=[user("go")], **body)
    assert [block.type for block in first.content] == ["thinking", "text", "tool_use", "tool_use"]
    thinking, text, one, two = first.content
    assert (thinking.thinking, text.text, one.input, two.input) == (
        "let me see", "I look.", {"command": "a"}, {"command": "b"},
    )  # fmt: skip
    assert thinking.signature
    assert one.id.isalnum()
    assert first.stop_reason == "tool_use"
    assert events[0].type == "message_start"
    assert events[-1].type == "message_stop"
    history = [user("go"), assistant(first), user([result(two), result(one)])]
    last = await client.messages.create(model="m", max_tokens=500, messages=history, **body)
    assert (last.content[0].text, last.stop_reason) == ("done", "end_turn")
    assert last.usage.input_tokens == len(rig.engine.requests[1].input_ids)
    (segment,) = (await rig.end(session)).segments
    assert segment.trained_tokens == sum(len(request.output_ids) for request in rig.engine.requests)
    assert segment.kind == "main"


async def test_a_streamed_and_a_whole_reply_say_the_same(rig, call):
    reply = "<think>\nhm\n</think>\n\n" + "é😀 text " * 200 + "\n" + call("Bash", command="x" * 2000)
    rig.script(reply)
    session = await rig.open()
    whole = await claude(rig, session).messages.create(
        model="m", max_tokens=5000, messages=[user("a")], tools=[BASH]
    )
    streamed, _ = await collect(claude(rig, session), messages=[user("b")], tools=[BASH])
    own = {"type", "thinking", "text", "name", "input"}
    shown = [[block.model_dump(include=own) for block in m.content] for m in (whole, streamed)]
    assert shown[0] == shown[1]
    assert streamed.usage.output_tokens == whole.usage.output_tokens == len(rig.ids(reply)) + 1
    assert streamed.usage.input_tokens == whole.usage.input_tokens
    thinking = len(rig.ids("<think>\nhm\n</think>"))
    assert whole.usage.output_tokens_details.thinking_tokens == thinking
    assert streamed.id != whole.id


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("output", "asked", "expected"),
    [
        ("end", {}, ("end_turn", None)),
        ("call", {}, ("tool_use", None)),
        ("end", {"max_tokens": 2}, ("max_tokens", None)),
        ("call", {"max_tokens": 12}, ("max_tokens", None)),
        ("stop", {"stop_sequences": ["END"]}, ("stop_sequence", "END")),
    ],
)
async def test_stop_reasons_are_right_and_length_stays_length(rig, call, output, asked, expected, stream):
    texts = {"end": "all is done", "call": call("Bash", command="ls -la")}
    if output == "stop":
        rig.script_raw(Output(rig.ids("ab END"), matched="END"))
    else:
        rig.script(texts[output])
    body = {"model": "m", "max_tokens": 500, "messages": [user("go")], "tools": [BASH], **asked}
    client = claude(rig, await rig.open())
    if stream:
        async with client.messages.stream(**body) as events:
            message = await events.get_final_message()
    else:
        message = await client.messages.create(**body)
    assert (message.stop_reason, message.stop_sequence) == expected
    if expected[0] == "max_tokens":
        assert not [block for block in message.content if block.type == "tool_use"]


async def test_a_string_and_one_text_block_are_equal_and_cache_marks_mean_nothing(rig):
    session = await rig.open()
    client = claude(rig, session)
    mark = {"cache_control": {"type": "ephemeral"}}
    blocks = [user([{"type": "text", "text": "go", **mark}])]
    first = await client.messages.create(
        model="m", max_tokens=50, system=[{"type": "text", "text": "S", **mark}], messages=blocks
    )
    history = [user("go"), assistant(first), user("on")]
    await client.messages.create(model="m", max_tokens=50, system="S", messages=history)
    assert len((await rig.end(session)).segments) == 1


@pytest.mark.parametrize("system", [None, "", [], [{"type": "text", "text": ""}]])
async def test_a_system_prompt_that_says_nothing_is_none(rig, system):
    session = await rig.open()
    body = {"model": "m", "max_tokens": 50, "system": system, "messages": [user("go")]}
    assert (await rig.http.post(f"/s/{session}/v1/messages", json=body)).status_code == 200
    assert "system" not in rig.codec.decode(rig.engine.requests[0].input_ids)


async def test_system_messages_inside_the_conversation_stay_where_they_are(rig):
    session = await rig.open()
    note = {"role": "system", "content": "# Environment", "output_config": {"effort": "low"}}
    body = {"model": "m", "max_tokens": 50, "messages": [user("go"), note]}
    reply = await rig.http.post(f"/s/{session}/v1/messages?beta=true", json=body)
    assert reply.status_code == 200, reply.text
    prompt = rig.codec.decode(rig.engine.requests[0].input_ids)
    assert prompt.index("go") < prompt.index("# Environment")


async def test_count_tokens_tells_what_the_prompt_will_be_and_keeps_nothing(rig):
    session = await rig.open()
    client = claude(rig, session)
    body = {"model": "m", "messages": [user("count me")], "system": "S", "tools": [BASH]}
    counted = await client.messages.count_tokens(**body)
    reply = await client.messages.create(max_tokens=50, **body)
    assert counted.input_tokens == reply.usage.input_tokens == len(rig.engine.requests[0].input_ids)
    body["messages"] += [assistant(reply), user("more")]
    counted = await client.messages.count_tokens(**body)
    reply = await client.messages.create(max_tokens=50, **body)
    assert counted.input_tokens == reply.usage.input_tokens
    assert len(rig.engine.requests) == 2


@pytest.mark.parametrize("query", ["after_id=dressage", "before_id=dressage&limit=20"])
async def test_before_and_after_the_one_model_is_a_page_with_none_for_who_turns_pages_until_then(rig, query):
    route, version = f"/s/{await rig.open()}/v1/models", {"anthropic-version": "2023-06-01"}
    first = (await rig.http.get(f"{route}?limit=20", headers=version)).json()
    assert [first["last_id"], first["first_id"]] == [first["data"][0]["id"]] * 2 == ["dressage"] * 2
    other = (await rig.http.get(f"{route}?{query}", headers=version)).json()
    assert other == {"data": [], "has_more": False, "first_id": None, "last_id": None}


async def test_models_and_probes_are_answered_in_the_dialects_shape(rig):
    session = await rig.open()
    listed = await claude(rig, session).models.list()
    assert [model.id for model in listed.data] == ["dressage"]
    assert (await claude(rig, session).models.retrieve("any")).id == "any"
    assert (await rig.http.head(f"/s/{session}/api/hello")).status_code == 200


async def test_an_overflow_is_a_400_in_the_words_that_claude_code_compacts_by(make_rig):
    rig = await make_rig(context_window=64)
    session = await rig.open()
    with pytest.raises(anthropic.BadRequestError) as caught:
        await claude(rig, session).messages.create(model="m", max_tokens=50, messages=[user("long " * 100)])
    error = caught.value.body["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith("prompt is too long: ")
    assert rig.engine.requests == []


async def test_unknown_and_finished_sessions_are_told_in_the_dialects_shape(rig):
    session = await rig.open()
    await rig.end(session)
    for path, status in ((f"/s/{session}", 410), ("/s/" + "0" * 32, 404)):
        reply = await rig.http.post(f"{path}/v1/messages", json={})
        assert reply.status_code == status
        assert reply.json()["type"] == "error"
        assert reply.json()["error"]["message"]


ACCEPTED = [
    {"metadata": {"user_id": "u"}},
    {"service_tier": "auto"},
    {"thinking": {"type": "enabled", "budget_tokens": 2000}},
    {"thinking": {"type": "adaptive", "display": "updates"}},
    {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
    {"output_config": {"effort": "high"}},
    {"tool_choice": {"type": "auto"}},
    {"tool_choice": {"type": "none"}},
    {"stop_sequences": []},
    {"top_k": 5},
    {"temperature": 0.3},
    {"mcp_servers": []},
    {"system": None},
]
REFUSED = [
    ({"made_up": 1}, "made_up"),
    ({"container": "c"}, "container"),
    ({"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
    ({"tool_choice": {"type": "any"}, "tools": [BASH]}, "tool_choice"),
    ({"tool_choice": {"type": "tool", "name": "Bash"}, "tools": [BASH]}, "tool_choice"),
    ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}, "tools": [BASH]},
     "tool_choice.disable_parallel_tool_use"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"name": ""}]}, "tools[0].name"),
    ({"tools": {}}, "tools"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"stop_sequences": [1]}, "stop_sequences"),
    ({"temperature": 3}, "temperature"),
    ({"stream": "yes"}, "stream"),
    ({"system": 5}, "system"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [user([{"type": "tool_result", "content": "x"}])]}, "messages[0].content[0].tool_use_id"),
    ({"messages": [user("x"), {"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]},
     "messages[1].content[0].name"),
    ({"messages": [user("x"), {"role": "assistant", "content": "y"}]}, "last message"),
]  # fmt: skip


async def test_every_parameter_is_accepted_by_a_declared_list_or_refused_by_name(rig):
    session = await rig.open()
    base = {"model": "m", "max_tokens": 20, "messages": [user("x")]}
    for extra in ACCEPTED:
        reply = await rig.http.post(f"/s/{session}/v1/messages", json={**base, **extra})
        assert reply.status_code == 200, (extra, reply.text)
    asked = len(rig.engine.requests)
    for extra, field in REFUSED:
        reply = await rig.http.post(f"/s/{session}/v1/messages", json={**base, **extra})
        assert reply.status_code == 400, extra
        assert reply.json()["error"]["type"] == "invalid_request_error"
        assert field in reply.json()["error"]["message"], extra
    assert len(rig.engine.requests) == asked
    first = rig.tree(session).turn(0)
    assert first.extra["accepted"] == ["metadata"]


async def test_images_are_refused_plainly_wherever_they_stand(rig):
    session = await rig.open()
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    result_block = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
    document = {"type": "document", "source": {"type": "text", "data": "x"}}
    for content in ([image], [result_block], [document]):
        body = {"model": "m", "max_tokens": 20, "messages": [user(content)]}
        reply = await rig.http.post(f"/s/{session}/v1/messages", json=body)
        assert reply.status_code == 400
        assert "reads text alone" in reply.json()["error"]["message"]
    assert rig.engine.requests == []


async def test_a_slow_stream_is_kept_alive_by_pings_after_its_start(make_rig):
    rig = await make_rig(keepalive_s=0.02)
    rig.engine.hold_after = 1
    session = await rig.open()
    body = {"model": "m", "max_tokens": 50, "messages": [user("x")], "stream": True}
    kinds, usage, start = [], None, {}
    async with rig.http.stream("POST", f"/s/{session}/v1/messages", json=body) as reply:
        async for line in reply.aiter_lines():
            if not line.startswith("data: "):
                continue
            event = json.loads(line.removeprefix("data: "))
            kinds.append(event["type"])
            if kinds.count("ping") == 3 and rig.engine.hold_after:
                await rig.engine.release()
            usage = event.get("usage", usage)
            start = event.get("message", start)
    assert start["usage"]["input_tokens"] == len(rig.engine.requests[0].input_ids)
    assert kinds[:2] == ["message_start", "ping"]
    assert kinds.count("message_start") == 1
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert usage["input_tokens"] == len(rig.engine.requests[0].input_ids)


async def test_an_engine_that_fails_is_told_with_retry_after_or_inside_a_started_stream(make_rig):
    rig = await make_rig(engines=("http://127.0.0.1:9",), engine_attempts=1)
    session = await rig.open()
    body = {"model": "m", "max_tokens": 50, "messages": [user("x")]}
    for stream in (False, True):
        reply = await rig.http.post(f"/s/{session}/v1/messages", json={**body, "stream": stream})
        assert reply.status_code == 503
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.json()["error"]["type"] == "overloaded_error"


async def test_redacted_thinking_carries_the_handle_too_and_thinking_may_be_dropped(rig):
    rig.script("<think>\nhm\n</think>\n\nyes", "later")
    session = await rig.open()
    first = await claude(rig, session).messages.create(model="m", max_tokens=50, messages=[user("go")])
    signature = first.content[0].signature
    text = {"type": "text", "text": "yes"}
    forms = [
        [{"type": "redacted_thinking", "data": signature}, {"type": "text", "text": "rewritten"}],
        [{"type": "thinking", "thinking": "", "signature": signature}, text],
        [text],
        "yes",
    ]
    for form in forms:
        history = [user("go"), {"role": "assistant", "content": form}, user("on")]
        await claude(rig, session).messages.create(model="m", max_tokens=50, messages=history)
    first_request, *later = rig.engine.requests
    whole = first_request.input_ids + first_request.output_ids
    assert all(request.input_ids[: len(whole)] == whole for request in later)
    flags = [turn.extra.get("flags") for turn in rig.tree(session).turns[1:]]
    assert [bool(flag) for flag in flags] == [True, False, False, False]
