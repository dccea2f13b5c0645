"""Replies and streams of the chat-completions dialect as the official clients see them."""

import asyncio
import json

import openai
import pytest
from dressage_proxy.engine.scripted import Output


def shown(message):
    """The message as a client sends it back."""
    return message.model_dump(exclude_none=True)


async def collected(stream):
    """A stream put together as clients do: (content, calls by index, finish reasons, usages)."""
    content, calls, finishes, usages = "", {}, [], []
    async for chunk in stream:
        if chunk.usage is not None:
            usages.append(chunk.usage)
        for choice in chunk.choices:
            content += choice.delta.content or ""
            if choice.finish_reason:
                finishes.append(choice.finish_reason)
            for call in choice.delta.tool_calls or []:
                known = calls.setdefault(call.index, {"id": "", "name": "", "arguments": ""})
                known["id"] += call.id or ""
                known["name"] += call.function.name or ""
                known["arguments"] += call.function.arguments or ""
    return content, calls, finishes, usages


async def test_a_conversation_of_several_turns_is_one_segment(rig, shell, call):
    rig.script(call(command="ls"), "two files")
    session = await rig.open()
    first = await rig.chat(session, "list", tools=[shell])
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert message.content is None
    assert json.loads(message.tool_calls[0].function.arguments) == {"command": "ls"}
    answer = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "a b"}
    second = await rig.chat(session, "list", shown(message), answer, tools=[shell])
    assert second.choices[0].message.content == "two files"
    assert second.choices[0].finish_reason == "stop"
    trajectory = await rig.end(session)
    assert len(trajectory.segments) == 1
    assert trajectory.lost_tokens == {}
    sent = rig.engine.requests
    whole = sent[0].input_ids + sent[0].output_ids
    assert sent[1].input_ids[: len(whole)] == whole


async def test_the_synchronous_client_works(rig):
    rig.script("hello")
    session = await rig.open()

    def talk():
        with openai.OpenAI(base_url=f"{rig.url}/s/{session}/v1", api_key="x", max_retries=0) as client:
            messages = [{"role": "user", "content": "hi"}]
            whole = client.chat.completions.create(model="m", messages=messages)
            messages += [whole.choices[0].message.model_dump(exclude_none=True)]
            messages += [{"role": "user", "content": "again"}]
            with client.chat.completions.create(model="m", messages=messages, stream=True) as stream:
                text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
            return whole, text, client.models.list().data

    whole, text, models = await asyncio.to_thread(talk)
    assert whole.choices[0].message.content == text == "hello"
    assert whole.model == "m"
    assert [model.id for model in models] == ["dressage"]


@pytest.mark.parametrize("length", [0, 1, 511, 512, 513, 2000])
async def test_a_stream_adds_up_to_the_whole_reply(rig, shell, call, length):
    text = "w" * length + "\n" + call(command="x" * length) + "\n" + call("other", path="é")
    rig.script(text)
    whole = (await rig.chat(await rig.open(), "go", tools=[shell])).choices[0]
    session = await rig.open()
    stream = await rig.chat(session, "go", tools=[shell], stream=True, stream_options={"include_usage": True})
    content, calls, finishes, usages = await collected(stream)
    assert content == (whole.message.content or "")
    assert [(c["name"], c["arguments"]) for c in calls.values()] == [
        (c.function.name, c.function.arguments) for c in whole.message.tool_calls
    ]
    assert finishes == [whole.finish_reason] == ["tool_calls"]
    assert [usage.completion_tokens for usage in usages] == [len(rig.engine.requests[-1].output_ids)]


async def test_a_stream_without_the_option_tells_no_usage(rig):
    session = await rig.open()
    assert (await collected(await rig.chat(session, "go", stream=True)))[3] == []
    reply = await rig.post(
        session, {"messages": [{"role": "user", "content": "x"}], "stream": True, "stream_options": None}
    )
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.text.endswith("data: [DONE]\n\n")
    assert '"usage"' not in reply.text


async def test_usage_counts_what_the_engine_saw_and_sampled(rig):
    rig.script("some words")
    usage = (await rig.chat(await rig.open(), "hi")).usage
    (sent,) = rig.engine.requests
    assert usage.prompt_tokens == len(sent.input_ids)
    assert usage.completion_tokens == len(sent.output_ids)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens == 0


async def test_parallel_calls_are_answered_in_any_order(rig, shell, call):
    rig.script(call(command="a") + "\n" + call(command="b"), "done")
    session = await rig.open()
    message = (await rig.chat(session, "go", tools=[shell])).choices[0].message
    first, second = message.tool_calls
    assert first.id != second.id
    assert first.id.isalnum(), "agents strip other characters"
    answers = [
        {"role": "tool", "tool_call_id": second.id, "content": "B"},
        {"role": "tool", "tool_call_id": first.id, "content": "A"},
    ]
    await rig.chat(session, "go", shown(message), *answers, tools=[shell])
    assert len((await rig.end(session)).segments) == 1


async def test_reasoning_is_told_apart_and_its_loss_in_the_echo_is_no_new_segment(rig):
    rig.script("<think>\nlet me see\n</think>\n\nfour", "five")
    session = await rig.open()
    message = (await rig.chat(session, "2+2")).choices[0].message
    assert message.content == "four"
    assert message.model_extra["reasoning_content"] == "let me see"
    await rig.chat(session, "2+2", {"role": "assistant", "content": "four"}, "2+3")
    trajectory = await rig.end(session)
    assert len(trajectory.segments) == 1, "what was sampled stays in context"


async def test_probes_are_answered_and_other_routes_named(rig):
    session = await rig.open()
    for path in ("", "/", "/v1", "/v1/models", "/v1/anything"):
        assert (await rig.http.get(f"/s/{session}{path}")).status_code == 200
        head = await rig.http.head(f"/s/{session}{path}")
        assert (head.status_code, head.content) == (200, b"")
    reply = await rig.http.put(f"/s/{session}/v1/models", json={})
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unknown_route")
    assert (await rig.http.get(f"/s/{'f' * 32}/v1/models")).status_code == 404


@pytest.mark.parametrize(
    "path", ["chat/completions/chatcmpl-1", "responses/resp_1", "files", "files/file-1", "batches",
             "messages/batches/b", "conversations/c"],
)  # fmt: skip
async def test_what_the_proxy_keeps_for_no_client_is_not_found(rig, path):
    session = await rig.open()
    reply = await rig.http.get(f"/s/{session}/v1/{path}")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_kept")


async def test_stop_strings_end_the_reply_and_are_not_shown(rig):
    rig.script_raw(Output(rig.ids("ab END cd"), matched="END"))
    session = await rig.open()
    reply = await rig.chat(session, "hi", stop=["END", "other"])
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].message.content == "ab "
    assert rig.engine.requests[0].sampling_params["stop"] == ["END", "other"]
    turn = rig.tree(session).turn(0)
    assert rig.codec.decode(turn.output_ids).endswith("END"), "cut after the token that completed it"


async def test_a_slow_reply_keeps_its_stream_alive_with_comments(make_rig):
    rig = await make_rig(keepalive_s=0.02)
    rig.engine.hold_after = 1
    session = await rig.open()
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
    async with rig.http.stream("POST", f"/s/{session}/v1/chat/completions", json=body) as reply:
        lines = reply.aiter_lines()
        comments = 0
        async for line in lines:
            comments += line == ": working"
            if comments == 3:
                await rig.engine.release()
            if line == "data: [DONE]":
                break
    assert comments >= 3
