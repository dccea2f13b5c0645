"""The chat-completions dialect as the official clients see it."""

import asyncio
import json

import openai
import pytest
from dressage_proxy.engine.scripted import Fault


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


async def test_reasoning_is_told_apart_and_its_loss_in_the_echo_is_no_new_segment(make_rig, rig):
    rig.script("<think>\nlet me see\n</think>\n\nfour", "five")
    session = await rig.open()
    message = (await rig.chat(session, "2+2")).choices[0].message
    assert message.content == "four"
    assert message.model_extra["reasoning_content"] == "let me see"
    await rig.chat(session, "2+2", {"role": "assistant", "content": "four"}, "2+3")
    trajectory = await rig.end(session)
    assert len(trajectory.segments) == 1, "what was sampled stays in context"


HONOURED = {
    "temperature": (0.5, "temperature", 0.5),
    "top_p": (0.9, "top_p", 0.9),
    "top_k": (7, "top_k", 7),
    "min_p": (0.1, "min_p", 0.1),
    "seed": (11, "sampling_seed", 11),
    "frequency_penalty": (0.5, "frequency_penalty", 0.5),
    "presence_penalty": (-0.5, "presence_penalty", -0.5),
    "repetition_penalty": (1.1, "repetition_penalty", 1.1),
    "max_tokens": (5, "max_new_tokens", 5),
    "max_completion_tokens": (6, "max_new_tokens", 6),
    "stop": ("END", "stop", ["END"]),
}


async def test_a_sampling_parameter_reaches_the_engine_and_the_evidence(rig):
    for name, (value, engine_name, expected) in HONOURED.items():
        session = await rig.open()
        await rig.chat(session, "hi", extra_body={name: value})
        assert rig.engine.requests[-1].sampling_params[engine_name] == expected
        (segment,) = (await rig.end(session)).segments
        recorded = "max_tokens" if "max" in name else name
        assert segment.sampling[recorded] == expected


NEUTRAL = [
    {"user": "u"},
    {"metadata": {"a": "b"}},
    {"store": True},
    {"service_tier": "auto"},
    {"prompt_cache_key": "k"},
    {"safety_identifier": "s"},
    {"n": 1},
    {"logprobs": False},
    {"top_logprobs": 0},
    {"logit_bias": {}},
    {"response_format": {"type": "text"}},
    {"modalities": ["text"]},
    {"functions": []},
    {"parallel_tool_calls": True},
    {"tool_choice": "auto"},
    {"tools": []},
    {"tools": None},
    {"stop": None},
    {"stop": []},
    {"temperature": None},
    {"stream_options": {"include_usage": False, "include_obfuscation": False}},
]


async def test_a_parameter_that_changes_nothing_is_taken(rig):
    session = await rig.open()
    for extra in NEUTRAL:
        reply = await rig.post(session, {"messages": [{"role": "user", "content": "x"}], **extra})
        assert reply.status_code == 200, (extra, reply.text)


REFUSED = [
    ({"n": 2}, "n"),
    ({"logprobs": True}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logit_bias": {"1": 5}}, "logit_bias"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": "auto"}, "function_call"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"verbosity": "low"}, "verbosity"),
    ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"parallel_tool_calls": False}, "parallel_tool_calls"),
    ({"made_up": 1}, "made_up"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": 0}, "top_k"),
    ({"top_k": 2.5}, "top_k"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"seed": 1.5}, "seed"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "9"}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": 0, "max_tokens": 5}, "max_completion_tokens"),
    ({"stop": 0}, "stop"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["a", 1]}, "stop"),
    ({"stream": "yes"}, "stream"),
    ({"stream": True, "stream_options": []}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 3}}, "stream_options.include_usage"),
    ({"stream": True, "stream_options": {"else": 3}}, "stream_options.else"),
    ({"tools": {}}, "tools"),
    ({"tools": ["x"]}, "tools[0]"),
    ({"tools": [{"type": "web_search"}]}, "tools[0]"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0]"),
    ({"tools": [{"type": "function", "function": {"name": 5}}]}, "tools[0]"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
]


async def test_what_is_not_supported_is_refused_by_name_before_the_engine_is_called(rig):
    session = await rig.open()
    for extra, field in REFUSED:
        reply = await rig.post(session, {"messages": [{"role": "user", "content": "x"}], **extra})
        assert reply.status_code == 400, extra
        error = reply.json()["error"]
        assert error["param"] == field, extra
        assert error["type"] == "invalid_request_error"
        assert field.split(".")[0].split("[")[0] in error["message"]
    assert rig.engine.requests == []
    assert (await rig.chat(session, "x")).choices, "the session goes on"


PARTS = [
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    {"type": "file", "file": {"file_id": "f"}},
    {"type": "text"},
    {"text": "no type"},
    7,
]


async def test_a_content_part_that_is_no_text_is_refused_and_never_dropped(rig):
    session = await rig.open()
    for part in PARTS:
        for role in ({"role": "user"}, {"role": "tool", "tool_call_id": "c"}):
            message = {**role, "content": [{"type": "text", "text": "see"}, part]}
            reply = await rig.post(session, {"messages": [{"role": "user", "content": "x"}, message]})
            assert reply.status_code == 400, part
            assert reply.json()["error"]["param"].startswith("messages[1].content[1]")
    assert rig.engine.requests == []


async def test_a_prompt_beyond_the_context_is_the_dialects_own_400_before_the_engine_is_called(make_rig):
    rig = await make_rig(context_window=40)
    session = await rig.open()
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            await rig.chat(session, "word " * 100, stream=stream)
        assert caught.value.code == "context_length_exceeded"
        assert caught.value.param == "messages"
        assert "maximum context length is 40 tokens" in caught.value.message
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


async def test_the_rollouts_sampling_wins_over_the_agents_and_the_wish_is_recorded(rig):
    session = await rig.open(sampling={"temperature": 1.0, "max_tokens": 4, "stop": ["Z"]})
    await rig.chat(session, "hi", temperature=0.2, max_tokens=100, stop="Y")
    sent = rig.engine.requests[0].sampling_params
    assert (sent["temperature"], sent["max_new_tokens"], sent["stop"]) == (1.0, 4, ["Z"])
    assert rig.tree(session).turn(0).extra["overridden"] == {"temperature": 0.2, "stop": ["Y"]}


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"{", "invalid_json"), (b"[]", "invalid_json"), (b"", "invalid_json"), (b"\xff", "invalid_json")],
)
async def test_a_body_that_is_no_json_object_is_a_400(rig, body, code):
    reply = await rig.http.post(f"/s/{await rig.open()}/v1/chat/completions", content=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, code)


async def test_a_body_that_is_too_large_is_a_413(make_rig):
    rig = await make_rig(max_body_bytes=2000)
    reply = await rig.post(await rig.open(), {"messages": [{"role": "user", "content": "x" * 3000}]})
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "body_too_large")


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


async def test_dialects_of_later_are_named_and_probes_are_answered(rig):
    session = await rig.open()
    for route in ("v1/responses", "v1/messages", "v1/messages/count_tokens"):
        reply = await rig.http.post(f"/s/{session}/{route}", json={})
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unsupported_dialect")
    for path in ("", "/", "/v1", "/v1/models", "/v1/anything"):
        assert (await rig.http.get(f"/s/{session}{path}")).status_code == 200
        head = await rig.http.head(f"/s/{session}{path}")
        assert (head.status_code, head.content) == (200, b"")
    reply = await rig.http.put(f"/s/{session}/v1/models", json={})
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unknown_route")
    assert (await rig.http.get(f"/s/{'f' * 32}/v1/models")).status_code == 404


async def test_stop_strings_end_the_reply_and_are_not_shown(rig):
    ids = rig.ids("ab END cd")
    rig.engine.policy = lambda *_: rig_output(ids, "END")
    session = await rig.open()
    reply = await rig.chat(session, "hi", stop=["END", "other"])
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].message.content == "ab "
    assert rig.engine.requests[0].sampling_params["stop"] == ["END", "other"]
    turn = rig.tree(session).turn(0)
    assert rig.codec.decode(turn.output_ids).endswith("END"), "cut after the token that completed it"


def rig_output(ids, matched):
    from dressage_proxy.engine.scripted import Output

    return Output(ids, matched=matched)


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


@pytest.mark.parametrize("fault", [Fault.NO_JSON, Fault.BAD_REQUEST])
async def test_an_engine_that_answers_nonsense_is_a_503_and_no_turn(rig, fault):
    rig.engine.inject(fault)
    session = await rig.open()
    with pytest.raises(openai.InternalServerError):
        await rig.chat(session, "hi")
    assert len(rig.tree(session)) == 0


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


async def test_an_error_after_the_first_comment_ends_the_stream_with_an_error_event(make_rig):
    rig = await make_rig(keepalive_s=0.02, engine_attempts=1)
    rig.engine.slow_s = 0.2
    rig.engine.inject(Fault.SLOW)
    rig.engine.policy = lambda ids, params, number: [70] * (params["max_new_tokens"] + 1)
    session = await rig.open()

    class Full(Exception):
        pass

    def refuse(*_):
        raise OSError("no space left")

    rig.proxy.pipeline.sink = type("Sink", (), {"append": staticmethod(refuse)})()
    with pytest.raises(openai.APIError) as caught:
        await collected(await rig.chat(session, "hi", stream=True))
    assert "no space left" in caught.value.message


async def test_a_store_that_fails_is_a_503_and_the_session_goes_on(rig, monkeypatch):
    session = await rig.open()
    good = rig.proxy.pipeline.sink

    def refuse(*_):
        raise OSError("no space left")

    monkeypatch.setattr(rig.proxy.pipeline, "sink", type("Sink", (), {"append": staticmethod(refuse)})())
    with pytest.raises(openai.InternalServerError) as caught:
        await rig.chat(session, "hi")
    assert (caught.value.status_code, caught.value.code) == (503, "store_failed")
    monkeypatch.setattr(rig.proxy.pipeline, "sink", good)
    await rig.chat(session, "hi")
    assert len((await rig.end(session)).segments) == 1


async def test_an_unexpected_failure_is_told_in_the_dialects_shape(rig, monkeypatch):
    session = await rig.open()

    async def broken(*_):
        raise KeyError("secret detail")

    monkeypatch.setattr(type(rig.proxy.pipeline), "answer", broken)
    with pytest.raises(openai.InternalServerError) as caught:
        await rig.chat(session, "hi")
    assert (caught.value.status_code, caught.value.code) == (500, "internal_error")
    assert "secret" not in caught.value.message


async def test_developer_and_system_messages_may_lead_and_tools_may_be_turned_off(rig, shell, call):
    rig.script(call(command="ls"))
    session = await rig.open()
    system = [{"role": "developer", "content": "A"}, {"role": "system", "content": "B"}]
    reply = await rig.chat(session, *system, "hi", tools=[shell], tool_choice="none")
    assert reply.choices[0].message.tool_calls is None, "no tools were offered"
    prompt = rig.codec.decode(rig.engine.requests[0].input_ids)
    assert "A\n\nB" in prompt
    assert "shell" not in prompt


async def test_template_kwargs_reach_the_template(make_rig, toy_folder, tmp_path):
    from dressage_tito import ChatCodec
    from dressage_tito.toy import TEMPLATE, write_toy_tokenizer

    template = (
        "{%- if mood %}{{- '<|im_start|>system\\n' + mood + '<|im_end|>\\n' }}{%- endif %}\n" + TEMPLATE
    )
    codec = ChatCodec.from_folder(write_toy_tokenizer(tmp_path / "mood", template=template))
    rig = await make_rig(codec=codec)
    session = await rig.open()
    await rig.chat(session, "hi", extra_body={"chat_template_kwargs": {"mood": "calm"}})
    assert "calm" in codec.decode(rig.engine.requests[0].input_ids)
