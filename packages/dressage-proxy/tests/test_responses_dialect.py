"""The OpenAI Responses dialect through the official client, and on the wire."""

import json

import openai
import pytest

EXEC = {
    "type": "function",
    "name": "exec_command",
    "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}},
    "strict": False,
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "edit files",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: PATCH"},
}
AGENTS = {
    "type": "namespace",
    "name": "multi_agent_v1",
    "description": "agents",
    "tools": [{"type": "function", "name": "spawn_agent", "parameters": {"type": "object"}}],
}


def item(role, text):
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def echoed(response):
    """Output items as codex sends them back: whole, under other ids."""
    return [{**one.model_dump(exclude_none=True), "id": "other"} for one in response.output]


def answer(call, output="ok"):
    return {"type": f"{call.type}_output", "call_id": call.call_id, "output": output}


async def ask(rig, session, items, **body):
    return await rig.openai(session).responses.create(model="m", input=items, store=False, **body)


async def streamed(rig, session, items, **body):
    """All events of a stream, and the response that the last one holds."""
    events = [event async for event in await ask(rig, session, items, stream=True, **body)]
    return events, events[-1].response


async def test_a_conversation_with_reasoning_and_parallel_calls_is_one_segment_of_sampled_ids(rig, call):
    rig.script(
        "<think>\nlet me see\n</think>\n\nI look.\n" + call("exec_command", cmd="a") + "\n"
        + call("exec_command", cmd="b"),
        "done",
    )  # fmt: skip
    session = await rig.open()
    items = [item("developer", "Be good."), item("user", "go")]
    _, first = await streamed(rig, session, items, tools=[EXEC], reasoning={"summary": "auto"})
    assert [one.type for one in first.output] == ["reasoning", "message", "function_call", "function_call"]
    reasoning, message, one, two = first.output
    assert [part.text for part in reasoning.summary] == ["let me see"]
    assert reasoning.encrypted_content
    assert message.content[0].text == first.output_text == "I look."
    assert [json.loads(c.arguments) for c in (one, two)] == [{"cmd": "a"}, {"cmd": "b"}]
    assert one.call_id.isalnum()
    assert first.status == "completed"
    items += [*echoed(first), answer(two), answer(one)]
    last = await ask(rig, session, items, tools=[EXEC])
    assert (last.output_text, last.status) == ("done", "completed")
    assert last.usage.input_tokens == len(rig.engine.requests[1].input_ids)
    (segment,) = (await rig.end(session)).segments
    assert segment.trained_tokens == sum(len(request.output_ids) for request in rig.engine.requests)
    assert segment.kind == "main"


@pytest.mark.parametrize("asked", [{}, {"reasoning": {"summary": "auto"}}], ids=["whole", "summarised"])
async def test_the_stream_is_framed_numbered_and_its_deltas_add_up(rig, call, asked):
    text = "é😀 text " * 200
    rig.script(
        "<think>\n" + "hm " * 300 + "\n</think>\n\n" + text + "\n" + call("exec_command", cmd="x" * 2000)
    )
    session = await rig.open()
    events, response = await streamed(rig, session, [item("user", "go")], tools=[EXEC], **asked)
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    sums, ends = {}, {}
    for event in events:
        base, _, what = event.type.rpartition(".")
        if what == "delta":
            key = (base, event.item_id)
            sums[key] = sums.get(key, "") + event.delta
        elif what == "done" and base not in ("response.output_item", "response.content_part"):
            value = getattr(event, "text", None) or getattr(event, "arguments", None)
            if value is not None:
                ends[base, event.item_id] = value
    assert sums == ends
    assert len(sums) == 3
    (told,) = [base for base, _ in sums if "reasoning" in base]
    assert told == ("response.reasoning_summary_text" if asked else "response.reasoning_text")
    added = [event.item.id for event in events if event.type == "response.output_item.added"]
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert added == [one.id for one in done] == [one.id for one in response.output]
    assert [one.model_dump() for one in done] == [one.model_dump() for one in response.output]


async def test_a_streamed_and_a_whole_reply_say_the_same(rig, call):
    rig.script("<think>\nhm\n</think>\n\nyes\n" + call("exec_command", cmd="ls"))
    session = await rig.open()
    whole = await ask(rig, session, [item("user", "a")], tools=[EXEC])
    _, other = await streamed(rig, session, [item("user", "b")], tools=[EXEC])
    shown = [
        [
            one.model_dump(exclude={"id", "call_id", "encrypted_content"})
            for one in response.output
        ]
        for response in (whole, other)
    ]  # fmt: skip
    assert shown[0] == shown[1]
    assert whole.usage == other.usage
    assert whole.usage.output_tokens_details.reasoning_tokens > 0
    assert whole.id != other.id


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cut_reply_is_incomplete_and_hands_out_no_half_call(rig, call, stream):
    rig.script(call("exec_command", cmd="rm -rf build"))
    session = await rig.open()
    body = {"tools": [EXEC], "max_output_tokens": 12}
    if stream:
        events, response = await streamed(rig, session, [item("user", "go")], **body)
        assert events[-1].type == "response.incomplete"
    else:
        response = await ask(rig, session, [item("user", "go")], **body)
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert not [one for one in response.output if one.type == "function_call"]


async def test_a_freeform_tool_is_given_plain_text_and_its_echo_is_the_sampled_turn(rig, call):
    patch = '*** Begin Patch\n+"é"\n*** End Patch\n'
    rig.script(call("apply_patch", input=patch), "done")
    session = await rig.open()
    items = [item("user", "go")]
    events, first = await streamed(rig, session, items, tools=[EXEC, PATCH])
    (made,) = first.output
    assert (made.type, made.name, made.input) == ("custom_tool_call", "apply_patch", patch)
    deltas = [e.delta for e in events if e.type == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == patch
    await ask(rig, session, [*items, *echoed(first), answer(made)], tools=[EXEC, PATCH])
    prompt = rig.codec.decode(rig.engine.requests[0].input_ids)
    assert "start: PATCH" in prompt
    assert len((await rig.end(session)).segments) == 1


FREELY = [{"patch": "x"}, {"input": "x", "workdir": "/"}, {"input": 5}, {}, {"input": None}, {"input": ""}]


@pytest.mark.parametrize("arguments", FREELY)
async def test_a_freeform_call_with_other_arguments_is_sent_back_as_it_was_told(rig, call, arguments):
    rig.script(call("apply_patch", **arguments), "done")
    session = await rig.open()
    items = [item("user", "go")]
    _, first = await streamed(rig, session, items, tools=[EXEC, PATCH])
    (made,) = first.output
    assert made.input == (arguments["input"] if arguments == {"input": ""} else json.dumps(arguments))
    await ask(rig, session, [*items, *echoed(first), answer(made)], tools=[EXEC, PATCH])
    assert "flags" not in rig.tree(session).turn(1).extra
    changed = [{**made.model_dump(), "input": "other"}]
    await ask(rig, session, [*items, *changed, answer(made)], tools=[EXEC, PATCH])
    (flag,) = rig.tree(session).turn(2).extra["flags"]
    assert "not what was returned" in flag
    assert len({turn.parent for turn in rig.tree(session).turns}) == 2, "the sampled ids stand for both"


async def test_a_namespaced_tool_keeps_its_namespace_on_the_wire(rig, call):
    rig.script(call("multi_agent_v1__spawn_agent", message="go"), "done")
    session = await rig.open()
    items = [item("user", "go")]
    _, first = await streamed(rig, session, items, tools=[EXEC, AGENTS])
    (made,) = first.output
    assert (made.name, made.namespace) == ("spawn_agent", "multi_agent_v1")
    await ask(rig, session, [*items, *echoed(first), answer(made)], tools=[EXEC, AGENTS])
    assert len((await rig.end(session)).segments) == 1
    tree = rig.tree(session)
    assert "flags" not in tree.turn(1).extra


@pytest.mark.parametrize(
    "kind", ["web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"]
)
async def test_tools_of_openais_servers_are_left_out_and_noted(rig, kind):
    session = await rig.open()
    await ask(rig, session, [item("user", "go")], tools=[EXEC, {"type": kind}])
    (note,) = rig.tree(session).turn(0).extra["flags"]
    assert "web_search" in note
    assert "web_search" not in rig.codec.decode(rig.engine.requests[0].input_ids)


async def test_instructions_and_a_plain_text_are_a_conversation(rig):
    session = await rig.open()
    reply = await rig.openai(session).responses.create(model="m", input="hello", instructions="Be brief.")
    prompt = rig.codec.decode(rig.engine.requests[0].input_ids)
    assert prompt.index("Be brief.") < prompt.index("hello")
    assert reply.output_text


ACCEPTED = [
    {"store": True},
    {"user": "u"},
    {"metadata": {"a": "b"}},
    {"client_metadata": {"turn_id": "t"}},
    {"prompt_cache_key": "k"},
    {"service_tier": "auto"},
    {"include": ["reasoning.encrypted_content"]},
    {"reasoning": {"effort": "medium", "summary": "auto"}},
    {"text": {"verbosity": "low"}},
    {"text": {"format": {"type": "text"}}},
    {"parallel_tool_calls": True},
    {"parallel_tool_calls": False, "tools": []},
    {"tool_choice": "auto"},
    {"tool_choice": "none", "tools": [EXEC]},
    {"truncation": "disabled"},
    {"truncation": "auto"},
    {"background": False},
    {"previous_response_id": None},
    {"top_logprobs": 0},
]
REFUSED = [
    ({"made_up": 1}, "made_up"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "c"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"background": True}, "background"),
    ({"truncation": "middle"}, "truncation"),
    ({"max_tool_calls": 3}, "max_tool_calls"),
    ({"include": ["message.output_text.logprobs"]}, "include[0]"),
    ({"include": ["reasoning.encrypted_content", "made_up"]}, "include[1]"),
    ({"include": [5]}, "include[0]"),
    ({"include": "x"}, "include"),
    ({"text": {"format": {"type": "json_object"}}}, "text.format"),
    ({"tool_choice": "required", "tools": [EXEC]}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
    ({"parallel_tool_calls": False, "tools": [EXEC]}, "parallel_tool_calls"),
    ({"tools": [{"type": "local_shell"}]}, "tools[0].type"),
    ({"tools": [EXEC, EXEC]}, "tools[1].name"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"instructions": 5}, "instructions"),
    ({"input": []}, "input"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
    ({"input": [{"type": "computer_call", "call_id": "x"}]}, "input[0].type"),
    ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
    ({"input": [item("user", "x"), {"type": "function_call", "call_id": "c"}]}, "input[1].name"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
     "input[0].content[0].type"),
]  # fmt: skip


async def test_every_parameter_is_accepted_by_a_declared_list_or_refused_by_name(rig):
    session = await rig.open()
    base = {"model": "m", "input": [item("user", "x")]}
    for extra in ACCEPTED:
        reply = await rig.http.post(f"/s/{session}/v1/responses", json={**base, **extra})
        assert reply.status_code == 200, (extra, reply.text)
    asked = len(rig.engine.requests)
    for extra, field in REFUSED:
        reply = await rig.http.post(f"/s/{session}/v1/responses", json={**base, **extra})
        assert reply.status_code == 400, (extra, reply.text)
        error = reply.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["param"] == field, extra
    assert len(rig.engine.requests) == asked


async def test_a_slow_stream_is_kept_alive_by_events_that_reset_idle_timers(make_rig):
    rig = await make_rig(keepalive_s=0.02)
    rig.engine.hold_after = 1
    session = await rig.open()
    kinds, numbers = [], []
    async for event in await ask(rig, session, [item("user", "x")], stream=True):
        kinds.append(event.type)
        numbers.append(event.sequence_number)
        if kinds.count("response.in_progress") == 3 and rig.engine.hold_after:
            await rig.engine.release()
    assert kinds[:3] == ["response.created", "response.in_progress", "response.in_progress"]
    assert kinds.count("response.created") == 1
    assert kinds[-1] == "response.completed"
    assert numbers == list(range(len(numbers)))


async def test_an_overflow_is_a_400_with_the_code_that_codex_knows(make_rig):
    rig = await make_rig(context_window=64)
    session = await rig.open()
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(rig, session, [item("user", "long " * 100)], stream=True)
    assert caught.value.code == "context_length_exceeded"
    assert rig.engine.requests == []


async def test_a_turn_without_its_end_is_asked_for_again_as_the_same_request(rig):
    rig.script("<think>\nhm\n</think>\n\nyes", "<think>\nhm hm\n</think>\n\nno", "later")
    session = await rig.open()
    items = [item("user", "go")]
    first = await ask(rig, session, items)
    orphan = next(one for one in echoed(first) if one["type"] == "reasoning")
    again = await ask(rig, session, [*items, orphan])
    assert rig.engine.requests[0].input_ids == rig.engine.requests[1].input_ids
    await ask(rig, session, [*items, orphan, *echoed(again), item("user", "on")])
    trajectory = await rig.end(session)
    assert len(trajectory.segments) == 1
    assert trajectory.lost_tokens == {"retry": len(rig.engine.requests[0].output_ids)}


async def test_no_response_is_kept_to_be_read_back(rig):
    session = await rig.open()
    made = await ask(rig, session, [item("user", "go")])
    with pytest.raises(openai.NotFoundError):
        await rig.openai(session).responses.retrieve(made.id)


async def test_a_turn_is_known_by_its_handle_after_a_restart_and_a_difference_is_flagged(rig, make_rig):
    rig.script("<think>\nhm\n</think>\n\nyes and no", "later")
    session = await rig.open()
    first = await ask(rig, session, [item("user", "go")])
    again = await make_rig(store=rig.store, engine=rig.engine)
    items = [item("user", "go"), *echoed(first), item("user", "on")]
    items[2]["content"][0]["text"] = "another text"
    await ask(again, session, items)
    one, two = rig.engine.requests
    whole = one.input_ids + one.output_ids
    assert two.input_ids[: len(whole)] == whole
    (flag,) = rig.tree(session).turn(1).extra["flags"]
    assert "is not what was returned as turn 0" in flag


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize("store", [{}, {"store": True}])
async def test_items_that_a_session_handed_out_are_named_in_their_place(rig, call, store, typed):
    rig.script("<think>\nhm\n</think>\n\nI look.\n" + call("exec_command", cmd="a"), "done", "bye")
    session = await rig.open()
    items = [item("user", "go")]
    for _ in range(3):
        said = await rig.openai(session).responses.create(model="m", input=items, tools=[EXEC], **store)
        kind = {"type": "item_reference"} if typed else {}
        items += [{**kind, "id": one.id} for one in said.output]
        calls = [one for one in said.output if one.type == "function_call"]
        items += [answer(one) for one in calls] or [item("user", "on")]
    (segment,) = (await rig.end(session)).segments
    assert segment.trained_tokens == sum(len(request.output_ids) for request in rig.engine.requests)
    assert all("flags" not in turn.extra for turn in rig.tree(session).turns)


async def test_items_are_known_to_the_session_that_handed_them_out_alone(rig):
    session, other = await rig.open(), await rig.open()
    said = await rig.openai(session).responses.create(model="m", input="go")
    for where, name in ((other, said.output[0].id), (session, "msg_" + "0" * 32), (session, "x")):
        named = [item("user", "go"), {"type": "item_reference", "id": name}, item("user", "on")]
        reply = await rig.http.post(f"/s/{where}/v1/responses", json={"model": "m", "input": named})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "input[1]")


@pytest.mark.parametrize("tools", [[EXEC], [PATCH], []], ids=["function", "freeform", "none"])
async def test_items_are_known_after_a_restart(rig, make_rig, call, tools):
    name = tools[0]["name"] if tools else "exec_command"
    text = "<think>\nhm\n</think>\n\nI look.\n" + call(name, input="a")
    rig.script(text, "later")
    session = await rig.open()
    first = await ask(rig, session, [item("user", "go")], tools=tools)
    again = await make_rig(store=rig.store, engine=rig.engine)
    items = [item("user", "go"), *({"type": "item_reference", "id": one.id} for one in first.output)]
    calls = [one for one in first.output if one.type.endswith("_call")]
    items += [answer(one) for one in calls] or [item("user", "on")]
    await ask(again, session, items, tools=tools)
    one, two = rig.engine.requests
    whole = one.input_ids + one.output_ids
    assert two.input_ids[: len(whole)] == whole
    assert "flags" not in again.tree(session).turn(1).extra
