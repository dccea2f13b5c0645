"""Every parameter of the chat-completions dialect is honoured or refused by name."""

import gzip

import pytest

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


TOOL = {"type": "function", "function": {"name": "f"}}

NEUTRAL = [
    {"user": "u"},
    {"metadata": {"a": "b"}},
    {"store": True},
    {"service_tier": "auto"},
    {"prompt_cache_key": "k"},
    {"safety_identifier": "s"},
    {"reasoning_effort": "high"},
    {"enable_thinking": True, "reasoning": {"effort": "low"}, "thinking": {"type": "enabled"}},
    {"verbosity": "low"},
    {"n": 1},
    {"logprobs": False},
    {"top_logprobs": 0},
    {"logit_bias": {}},
    {"response_format": {"type": "text"}},
    {"modalities": ["text"]},
    {"functions": []},
    {"parallel_tool_calls": True},
    {"parallel_tool_calls": False},
    {"parallel_tool_calls": False, "tools": []},
    {"parallel_tool_calls": False, "tools": [TOOL], "tool_choice": "none"},
    {"search_parameters": {"mode": "off"}},
    {"thinking_budget": 1024, "reasoning_split": True, "tool_stream": True},
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
    ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"search_parameters": {"mode": "auto"}}, "search_parameters"),
    ({"reasoning_split": False}, "reasoning_split"),
    ({"parallel_tool_calls": False, "tools": [TOOL]}, "parallel_tool_calls"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"made_up": 1}, "made_up"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"add_generation_prompt": False}, "add_generation_prompt"),
    ({"skip_special_tokens": False}, "skip_special_tokens"),
    ({"include_stop_str_in_output": True}, "include_stop_str_in_output"),
    ({"min_tokens": 5}, "min_tokens"),
    ({"ignore_eos": 0}, "ignore_eos"),
    ({"stop_token_ids": [5]}, "stop_token_ids"),
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


async def test_a_packed_body_is_refused_by_the_name_of_its_header(rig):
    packed = gzip.compress(b'{"messages": [{"role": "user", "content": "x"}]}')
    session = await rig.open()
    headers = {"Content-Encoding": "gzip"}
    reply = await rig.http.post(f"/s/{session}/v1/chat/completions", content=packed, headers=headers)
    assert (reply.status_code, reply.json()["error"]["param"]) == (415, "Content-Encoding")
    plain = {"messages": [{"role": "user", "content": "x"}]}
    assert (await rig.post(session, plain, headers={"Content-Encoding": "identity"})).status_code == 200


@pytest.mark.parametrize("path", ["chat/completions", "v1/v1/messages", "v1/completions"])
async def test_a_base_url_that_is_one_part_off_is_told_how_it_should_be(rig, path):
    body = {"messages": [{"role": "user", "content": "x"}]}
    reply = await rig.http.post(f"/s/{await rig.open()}/{path}", json=body)
    assert reply.status_code == 404
    assert "/s/{session}/v1" in reply.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "v1//chat/completions", "/v1//chat//completions/"])
async def test_a_base_url_that_ends_in_a_slash_is_the_same(rig, path):
    session = await rig.open()
    body = {"messages": [{"role": "user", "content": "x"}]}
    reply = await rig.http.post(f"/s/{session}/{path}", json=body)
    assert (reply.status_code, reply.json()["object"]) == (200, "chat.completion")
    models = await rig.http.get(f"/s/{session}//v1/models")
    assert models.json()["object"] == "list"


@pytest.mark.parametrize("caps", [(3, 7), (7, 3)])
async def test_of_two_names_for_the_replys_cap_the_lower_one_holds(rig, caps):
    session = await rig.open()
    await rig.chat(session, "x", max_tokens=caps[0], max_completion_tokens=caps[1])
    assert rig.engine.requests[0].sampling_params["max_new_tokens"] == 3


async def test_a_body_that_is_too_large_is_a_413(make_rig):
    rig = await make_rig(max_body_bytes=2000)
    reply = await rig.post(await rig.open(), {"messages": [{"role": "user", "content": "x" * 3000}]})
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "body_too_large")


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
