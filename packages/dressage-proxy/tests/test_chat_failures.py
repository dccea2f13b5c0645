"""Limits and failures as the official clients see them, in the dialect's own shape."""

import asyncio
import json

import openai
import pytest
from dressage_proxy.engine.scripted import Fault
from dressage_store import StoreFullError


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


async def test_a_prompt_beyond_the_context_is_the_dialects_own_400_before_the_engine_is_called(make_rig):
    rig = await make_rig(context_window=40)
    session = await rig.open()
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            await rig.chat(session, "word " * 100, stream=stream)
        assert caught.value.code == "context_length_exceeded"
        assert caught.value.param == "messages"
        assert "maximum context length is 40 tokens" in caught.value.message
        assert "input exceeds the context window of this model" in caught.value.message
    assert rig.engine.requests == []
    assert (await rig.chat(session, "hi")).choices, "a shorter one goes through"


async def test_a_session_may_have_a_smaller_window_but_not_a_larger_one(make_rig):
    rig = await make_rig(context_window=64, max_output_tokens=20)
    small = await rig.open(limits={"context_window": 20})
    with pytest.raises(openai.BadRequestError):
        await rig.chat(small, "abcdefghijklmnopqrst")
    large = await rig.open(limits={"context_window": 9999, "max_output_tokens": 9999})
    await rig.chat(large, "hi", max_tokens=500)
    assert rig.engine.requests[0].sampling_params["max_new_tokens"] == 20
    with pytest.raises(openai.BadRequestError):
        await rig.chat(large, "abcdefghijklmnopqrst" * 4)


async def test_what_is_left_of_the_window_caps_the_reply(make_rig):
    rig = await make_rig(context_window=40)
    rig.script("x" * 100)
    session = await rig.open()
    reply = await rig.chat(session, "hi", max_tokens=1000)
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.total_tokens == 40


async def test_limits_of_steps_and_tokens_end_a_session_by_name(rig):
    rig.script("abcde")
    session = await rig.open(limits={"max_steps": 1})
    await rig.chat(session, "a")
    with pytest.raises(openai.BadRequestError) as caught:
        await rig.chat(session, "b")
    assert caught.value.code == "max_steps_reached"
    reply = len(rig.ids("abcde")) + 1
    session = await rig.open(limits={"max_total_tokens": reply + 2})
    assert (await rig.chat(session, "a")).usage.completion_tokens == reply
    second = await rig.chat(session, "b")
    assert (second.usage.completion_tokens, second.choices[0].finish_reason) == (2, "length")
    with pytest.raises(openai.BadRequestError) as caught:
        await rig.chat(session, "c")
    assert caught.value.code == "max_total_tokens_reached"


async def test_parallel_calls_do_not_slip_past_the_step_limit(rig):
    rig.engine.hold_after = 1
    session = await rig.open(limits={"max_steps": 2})
    tasks = [asyncio.create_task(rig.chat(session, f"question {n}")) for n in range(4)]
    await rig.engine.until_running(2)
    await rig.engine.release()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(result, openai.BadRequestError) for result in results) == 2


async def test_an_unknown_session_is_404_and_a_finished_one_410_in_the_dialects_shape(rig):
    with pytest.raises(openai.NotFoundError) as unknown:
        await rig.chat("0" * 32, "hi")
    assert unknown.value.code == "session_not_found"
    session = await rig.open()
    await rig.end(session)
    with pytest.raises(openai.APIStatusError) as finished:
        await rig.chat(session, "hi")
    assert (finished.value.status_code, finished.value.code) == (410, "session_finished")
    await rig.http.post(f"/sessions/{session}/ack", json={"generation": 1})
    with pytest.raises(openai.APIStatusError) as acked:
        await rig.chat(session, "hi")
    assert acked.value.status_code == 410


@pytest.mark.parametrize("fault", [Fault.BUSY, Fault.SERVER_ERROR, Fault.UNAVAILABLE, Fault.DROP])
async def test_a_passing_failure_of_the_engine_is_absorbed(rig, fault):
    rig.engine.inject(fault)
    session = await rig.open()
    assert (await rig.chat(session, "hi")).choices[0].finish_reason == "stop"
    assert len((await rig.end(session)).segments) == 1


@pytest.mark.parametrize("fault", [Fault.BUSY, Fault.UNAVAILABLE, Fault.DROP])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_that_stays_is_a_real_503_with_retry_after(make_rig, fault, stream):
    rig = await make_rig(engine_attempts=2)
    rig.engine.inject(fault, fault)
    session = await rig.open()
    with pytest.raises(openai.InternalServerError) as caught:
        await rig.chat(session, "hi", stream=stream)
    assert caught.value.status_code == 503
    assert caught.value.code == "engine_unavailable"
    assert int(caught.value.response.headers["retry-after"]) > 0
    assert (await rig.chat(session, "hi")).choices, "the next one goes through"
    assert (await rig.end(session)).sampled_tokens == len(rig.engine.requests[-1].output_ids)


async def test_an_engine_that_answers_nonsense_is_a_502_and_no_turn(rig):
    rig.engine.inject(Fault.NO_JSON)
    session = await rig.open()
    with pytest.raises(openai.InternalServerError) as caught:
        await rig.chat(session, "hi")
    assert (caught.value.status_code, caught.value.code) == (502, "engine_misconfigured")
    assert len(rig.tree(session)) == 0


async def test_an_error_after_the_first_comment_ends_the_stream_with_an_error_event(make_rig):
    rig = await make_rig(keepalive_s=0.02, engine_attempts=1)
    rig.engine.slow_s = 0.2
    rig.engine.inject(Fault.SLOW)
    session = await rig.open()

    def refuse(*_):
        raise StoreFullError("/where/the/store/is: No space left on device")

    rig.proxy.pipeline.committer.sink = type("Sink", (), {"append": staticmethod(refuse)})()
    with pytest.raises(openai.APIError) as caught:
        await collected(await rig.chat(session, "hi", stream=True))
    assert "the store failed" in caught.value.message


@pytest.mark.parametrize("stuck", ["http.response.start", "http.response.body"])
async def test_a_comment_that_its_client_is_slow_to_take_is_whole_before_the_reply(make_rig, stuck):
    """The reply is made while the first comment waits for a client that does not read; none comes later."""
    rig = await make_rig(keepalive_s=1e-6)
    rig.engine.hold_after = 1
    session = await rig.open()
    body = {"model": "m", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    waits, reads, asked, sent = asyncio.Event(), asyncio.Event(), iter([json.dumps(body).encode()]), []

    async def receive():
        for data in asked:
            return {"type": "http.request", "body": data}
        return await asyncio.Event().wait()

    async def send(message):
        if message["type"] == stuck:
            waits.set()
            await reads.wait()
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": f"/s/{session}/v1/messages", "headers": []}
    answered = asyncio.create_task(rig.proxy.data_app()(scope, receive, send))
    await waits.wait()
    await rig.engine.release()
    while rig.proxy.pipeline.attempts.total:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.001)
    reads.set()
    await answered
    await asyncio.sleep(0.02)
    assert sent[0]["type"] == "http.response.start"
    assert [message["more_body"] for message in sent[1:]] == [True] * (len(sent) - 2) + [False]
    told = b"".join(message.get("body", b"") for message in sent)
    assert (told.count(b"event: message_start"), told.count(b"event: message_stop")) == (1, 1)
    assert not (await rig.end(session)).lost_tokens


async def test_a_store_that_fails_is_a_503_and_the_session_goes_on(rig, monkeypatch, caplog):
    session = await rig.open()
    good = rig.proxy.pipeline.committer.sink

    def refuse(*_):
        raise StoreFullError("/where/the/store/is: No space left on device")

    monkeypatch.setattr(
        rig.proxy.pipeline.committer, "sink", type("Sink", (), {"append": staticmethod(refuse)})()
    )
    with pytest.raises(openai.InternalServerError) as caught:
        await rig.chat(session, "hi")
    assert (caught.value.status_code, caught.value.code) == (503, "store_failed")
    assert "/where" not in caught.value.message, "an agent need not know where the store is"
    (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "/where/the/store/is" in line.getMessage()
    assert not line.exc_info, "on a full disk every call fails: a line is enough"
    monkeypatch.setattr(rig.proxy.pipeline.committer, "sink", good)
    await rig.chat(session, "hi")
    assert len((await rig.end(session)).segments) == 1


async def test_an_unexpected_failure_is_told_in_the_dialects_shape(rig, monkeypatch):
    session = await rig.open()

    def broken(*_):
        raise KeyError("secret detail")

    monkeypatch.setattr(type(rig.proxy.pipeline), "join", broken)
    with pytest.raises(openai.InternalServerError) as caught:
        await rig.chat(session, "hi")
    assert (caught.value.status_code, caught.value.code) == (500, "internal_error")
    assert "secret" not in caught.value.message
