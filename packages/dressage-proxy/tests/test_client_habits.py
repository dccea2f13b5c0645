"""What the helpers of client libraries add to a conversation of their own accord, in minimal requests."""

import pytest

RUN = {
    "type": "function",
    "name": "shell",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
}


def user(text):
    return {"role": "user", "content": text}


async def send(rig, session, route, **body):
    reply = await rig.http.post(f"/s/{session}/v1/{route}", json={"model": "m", **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


async def one_segment(rig, session):
    trajectory = await rig.end(session)
    assert len(trajectory.segments) == 1, [segment.cut_reason for segment in trajectory.segments]
    assert trajectory.segments[0].trained_tokens == trajectory.sampled_tokens


@pytest.mark.parametrize(
    "thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}, {}]
)
@pytest.mark.parametrize("route", ["messages", "messages/count_tokens"])
async def test_a_conversation_to_be_kept_is_refused_by_the_code_by_which_clients_send_all_of_it(
    rig, thread, route
):
    session = await rig.open()
    body = {"model": "m", "max_tokens": 9, "messages": [user("x")], "thread": thread}
    reply = await rig.http.post(f"/s/{session}/v1/{route}", json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["type"]) == (400, "invalid_request_error")
    assert error["details"] == {"error_code": "thread_unsupported_request"}
    assert "thread is not supported" in error["message"]
    assert rig.engine.requests == []


async def test_a_refusal_of_another_parameter_has_no_code_that_clients_act_on(rig):
    session = await rig.open()
    body = {"model": "m", "max_tokens": 9, "messages": [user("x")], "container": "c"}
    reply = await rig.http.post(f"/s/{session}/v1/messages", json=body)
    assert set(reply.json()["error"]) == {"type", "message"}


async def test_agents_that_sign_what_was_sampled_with_their_name_keep_one_branch(rig, shell, call):
    rig.script("I look\n" + call(command="ls"), "done", "bye")
    session = await rig.open()
    messages = [user("q1")]
    for result in ("out", None):
        body = {"messages": messages, "tools": [shell]}
        said = (await send(rig, session, "chat/completions", **body))["choices"][0]["message"]
        messages = [*messages, {**said, "name": "coder"}]
        for made in said.get("tool_calls") or ():
            messages.append({"role": "tool", "tool_call_id": made["id"], "content": result})
    await send(rig, session, "chat/completions", messages=[*messages, user("q2")], tools=[shell])
    assert all("flags" not in turn.extra for turn in rig.tree(session).turns)
    await one_segment(rig, session)


def renamed(messages):
    """Every call under the number that it has in the list, as some clients count them."""
    numbers = {}
    for message in messages:
        for made in message.get("tool_calls") or ():
            numbers[made["id"]] = f"call_{len(numbers):08x}"
    turned = []
    for message in messages:
        calls = [{**made, "id": numbers[made["id"]]} for made in message.get("tool_calls") or ()]
        changed = {**message, "tool_calls": calls} if calls else dict(message)
        if "tool_call_id" in changed:
            changed["tool_call_id"] = numbers[changed["tool_call_id"]]
        turned.append(changed)
    return turned


@pytest.mark.parametrize("reset", [False, True], ids=["remembered", "read anew"])
async def test_calls_that_a_client_gives_ids_of_its_own_are_known_in_their_place(rig, shell, call, reset):
    two = call(command="ls") + "\n" + call(command="pwd")
    rig.script(two, "<think>\nhm\n</think>\n\nI look\n" + call(command="ls"), call(command="ls"), "done")
    session = await rig.open()
    messages = [user("q")]
    for step in range(4):
        body = {"messages": renamed(messages), "tools": [shell]}
        said = (await send(rig, session, "chat/completions", **body))["choices"][0]["message"]
        if reset:
            rig.proxy.sessions.live(session).recents.clear()
        messages.append({key: value for key, value in said.items() if key != "reasoning_content"})
        for made in said.get("tool_calls") or ():
            messages.append({"role": "tool", "tool_call_id": made["id"], "content": f"out {step}"})
    assert all("flags" not in turn.extra for turn in rig.tree(session).turns)
    assert "copied" not in rig.tree(session).turn(3).extra
    await one_segment(rig, session)


async def test_a_result_that_comes_later_answers_the_call_that_it_was_handed_out_as(rig, shell, call):
    rig.script(call(command="ls") + "\n" + call(command="pwd"), "wait", "done")
    session = await rig.open()
    first = {"messages": [user("q")], "tools": [shell]}
    said = (await send(rig, session, "chat/completions", **first))["choices"][0]["message"]
    results = [{"role": "tool", "tool_call_id": made["id"], "content": "out"} for made in said["tool_calls"]]
    for count in (1, 2):
        body = {"messages": renamed([user("q"), said, *results[:count]]), "tools": [shell]}
        await send(rig, session, "chat/completions", **body)
    assert all("flags" not in turn.extra for turn in rig.tree(session).turns)
    assert [turn.parent for turn in rig.tree(session).turns] == [-1, 0, 0]


@pytest.mark.parametrize("change", ["arguments", "name", "count", "place"])
async def test_calls_under_other_ids_that_say_something_else_are_not_taken_for_sampled_ones(
    rig, shell, call, change
):
    rig.script(call(command="ls"), "done")
    session = await rig.open()
    first = {"messages": [user("q")], "tools": [shell]}
    said = (await send(rig, session, "chat/completions", **first))["choices"][0]["message"]
    (made,) = said["tool_calls"]
    made["id"] = "call_0"
    if change in ("arguments", "name"):
        made["function"][change] = '{"command": "rm"}' if change == "arguments" else "bash"
    made_too = {**made, "id": "call_1"}
    said["tool_calls"] = [made, made_too] if change == "count" else [made]
    results = [{"role": "tool", "tool_call_id": one["id"], "content": "out"} for one in said["tool_calls"]]
    question = user("another" if change == "place" else "q")
    body = {"messages": [question, said, *results], "tools": [shell]}
    await send(rig, session, "chat/completions", **body)
    turn = rig.tree(session).turn(1)
    assert turn.parent == -1
    assert [flag.split(" ", 1)[1] for flag in turn.extra["flags"]] == [
        "makes calls that were not sampled in this session",
        *(f"answers the unknown call {one['id']!r}" for one in said["tool_calls"]),
    ]


async def test_notes_and_cache_marks_of_agents_in_chat_messages_say_nothing(rig, shell, call):
    rig.script(call(command="ls"), "done")
    session = await rig.open()
    system = {"role": "system", "content": "be", "cache_breakpoint": True}
    question = {**user("q"), "prompt_cache_breakpoint": {"mode": "explicit"}}
    body = {"messages": [system, question], "tools": [shell]}
    said = (await send(rig, session, "chat/completions", **body))["choices"][0]["message"]
    wire = said["tool_calls"][0]["id"]
    said["extra"] = {"model_service_info": {"id": "x"}}
    result = {"role": "tool", "tool_call_id": wire, "content": "out", "extra": {"function_id": wire}}
    body = {"messages": [{"role": "system", "content": "be"}, user("q"), said, result], "tools": [shell]}
    await send(rig, session, "chat/completions", **body)
    await one_segment(rig, session)


async def test_a_result_may_name_its_call_by_its_own_id(rig, shell, call):
    rig.script(call(command="ls") + "\n" + call(command="pwd"), "done", "bye")
    session = await rig.open()
    messages = [user("q")]
    body = {"messages": messages, "tools": [shell]}
    said = (await send(rig, session, "chat/completions", **body))["choices"][0]["message"]
    results = [
        {"role": "tool", "name": "shell", "content": "out", "id": made["id"]} for made in said["tool_calls"]
    ]
    messages = [*messages, said, *results]
    await send(rig, session, "chat/completions", messages=messages, tools=[shell])
    assert "flags" not in rig.tree(session).turn(1).extra
    for stray in ("x", 5, None, ["x"]):
        body = {"messages": [*messages[:2], {**results[0], "id": stray}], "tools": [shell]}
        refused = await rig.post(session, body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages[2].tool_call_id")
    await one_segment(rig, session)


async def test_what_a_helper_read_out_of_an_item_may_come_back_with_it(rig, call):
    rig.script("I look\n" + call(command="ls"), "done")
    session = await rig.open()
    output = (await send(rig, session, "responses", input=[user("q")], tools=[RUN]))["output"]
    said, made = output
    said["content"][0]["parsed"] = {"a": 1}
    made["parsed_arguments"] = {"command": "ls"}
    result = {"type": "function_call_output", "call_id": made["call_id"], "output": "out"}
    await send(rig, session, "responses", input=[user("q"), said, made, result], tools=[RUN])
    assert "flags" not in rig.tree(session).turn(1).extra
    await one_segment(rig, session)


async def test_calls_under_a_clients_own_ids_are_what_was_said_where_the_reasoning_names_the_turn(rig, call):
    thought = "<think>\nhm\n</think>\n\n"
    rig.script(
        thought + call(command="ls") + "\n" + call(command="pwd"), thought + call(command="ls"), "done"
    )
    session = await rig.open()
    items = [user("q")]
    for step in range(3):
        body = {"input": items, "tools": [RUN], "store": False, "reasoning": {"summary": "auto"}}
        answers = []
        for item in (await send(rig, session, "responses", **body))["output"]:
            if item["type"] == "function_call":
                name = f"call_{item['call_id']}_{step}"
                item = {
                    "type": "function_call",
                    "call_id": name,
                    "name": "shell",
                    "arguments": item["arguments"],
                }
                answers.append({"type": "function_call_output", "call_id": name, "output": f"out {step}"})
            items.append(item)
        items += answers
    assert all("flags" not in turn.extra for turn in rig.tree(session).turns)
    await one_segment(rig, session)


def deferred(name):
    return {"name": name, "description": f"It can {name}.", "input_schema": {}, "defer_loading": True}


FIND = {"name": "find_tools", "input_schema": {"type": "object"}}


async def test_a_tool_that_a_result_loads_is_told_there_and_nothing_before_it_changes(rig, call):
    rig.script(call("find_tools", query="edit"), call("edit", path="a"), "done")
    session = await rig.open()
    messages, tools = [user("q")], [FIND, deferred("placeholder")]
    results = [
        {"content": [{"type": "tool_reference", "tool_name": "edit"}]},
        {"content": [{"type": "text", "text": "ok"}]},
        None,
    ]
    for result in results:
        body = {"messages": messages, "max_tokens": 90, "tools": tools}
        said = (await send(rig, session, "messages", **body))["content"]
        if result is not None:
            answer = {"type": "tool_result", "tool_use_id": said[-1]["id"], **result}
            more = {"role": "user", "content": [answer, {"type": "text", "text": "Loaded."}]}
            messages = [*messages, {"role": "assistant", "content": said}, more]
            tools = [FIND, deferred("placeholder"), deferred("edit")]
    first, second, _ = (rig.codec.decode(request.input_ids) for request in rig.engine.requests)
    assert "placeholder" not in second
    assert "edit" not in first.split("<|im_start|>user")[0]
    told = second.split("<tool_response>")[1]
    assert '"name": "edit", "description": "It can edit."' in told
    await one_segment(rig, session)


@pytest.mark.parametrize(("name", "text"), [("find_tools", "find_tools"), ("gone", "cannot be called")])
async def test_a_reference_to_a_tool_that_is_offered_or_gone_says_so(rig, call, name, text):
    rig.script(call("find_tools", query="x"), "done")
    session = await rig.open()
    body = {"messages": [user("q")], "max_tokens": 90, "tools": [FIND]}
    said = (await send(rig, session, "messages", **body))["content"]
    part = {"type": "tool_reference", "tool_name": name}
    answer = {"type": "tool_result", "tool_use_id": said[-1]["id"], "content": [part]}
    body["messages"] += [{"role": "assistant", "content": said}, {"role": "user", "content": [answer]}]
    await send(rig, session, "messages", **body)
    assert text in rig.codec.decode(rig.engine.requests[1].input_ids).split("<tool_response>")[1]
    unnamed = {**part, "tool_name": 5}
    body["messages"][-1] = {"role": "user", "content": [{**answer, "content": [unnamed]}]}
    reply = await rig.http.post(f"/s/{session}/v1/messages", json={"model": "m", **body})
    assert reply.status_code == 400
    assert "messages[2].content[0].content[0].tool_name" in reply.json()["error"]["message"]
