"""Parallel calls whose results come between them: still the one turn that made the calls."""

import json

import pytest

TOOLS = {
    "chat": {"type": "function", "function": {"name": "shell", "parameters": {"type": "object"}}},
    "messages": {"name": "shell", "input_schema": {"type": "object"}},
    "responses": {"type": "function", "name": "shell", "parameters": {"type": "object"}},
}


async def ask(rig, dialect, session, items):
    """The message items of the reply; ``items`` are of the dialect."""
    route = {"chat": "chat/completions"}.get(dialect, dialect)
    body = {"model": "m", "tools": [TOOLS[dialect]], "input" if dialect == "responses" else "messages": items}
    if dialect == "messages":
        body["max_tokens"] = 500
    reply = await rig.http.post(f"/s/{session}/v1/{route}", json=body)
    assert reply.status_code == 200, reply.text
    shown = reply.json()
    if dialect == "responses":
        return shown["output"]
    return shown["content"] if dialect == "messages" else [shown["choices"][0]["message"]]


def one_by_one(dialect, items):
    """Each call of the reply with its result right after it."""
    history = []
    if dialect == "responses":
        for item in items:
            history.append(item)
            if item["type"] == "function_call":
                answer = {"type": "function_call_output", "call_id": item["call_id"]}
                history.append({**answer, "output": f"is {item['arguments']}"})
    elif dialect == "messages":
        before = [item for item in items if item["type"] != "tool_use"]
        for call in (item for item in items if item["type"] == "tool_use"):
            result = {"type": "tool_result", "tool_use_id": call["id"], "content": f"is {call['input']}"}
            history.append({"role": "assistant", "content": [*before, call]})
            history.append({"role": "user", "content": [result]})
            before = []
    else:
        (message,) = items
        for number, call in enumerate(message["tool_calls"]):
            content = message["content"] if number == 0 else None
            history.append({"role": "assistant", "content": content, "tool_calls": [call]})
            result = f"is {call['function']['arguments']}"
            history.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return history


@pytest.mark.parametrize("dialect", TOOLS)
@pytest.mark.parametrize("said", ["", "I look.\n"])
async def test_calls_with_their_results_between_them_are_the_one_turn_that_was_sampled(
    rig, call, dialect, said
):
    rig.script(
        "<think>\nhm\n</think>\n" + said + call(n=1) + "\n" + call(n=2) + "\n" + call(n=3), "done", "on"
    )
    session, user = await rig.open(), {"role": "user", "content": "go"}
    items = await ask(rig, dialect, session, [user])
    history = [user, *one_by_one(dialect, items)]
    done = await ask(rig, dialect, session, history)
    if dialect == "messages":
        done = [{"role": "assistant", "content": done}]
    await ask(rig, dialect, session, [*history, *done, user])
    prompt = rig.codec.decode(rig.engine.requests[1].input_ids)
    assert [prompt.count(f'{{"n": {number}}}}}') for number in (1, 2, 3)] == [1, 1, 1]
    trajectory = await rig.end(session)
    assert len(trajectory.segments) == 1
    assert not trajectory.lost_tokens


async def test_a_later_call_without_the_first_is_not_taken_for_a_broken_stream(rig, shell, call):
    rig.script(call(n=1) + "\n" + call(n=2), "done")
    session = await rig.open()
    first = (await rig.chat(session, "go", tools=[shell])).choices[0].message
    later = first.tool_calls[1].model_dump()
    await rig.chat(
        session,
        "go",
        {"role": "assistant", "content": None, "tool_calls": [later]},
        {"role": "tool", "tool_call_id": later["id"], "content": "is 2"},
        tools=[shell],
    )
    trajectory = await rig.end(session)
    assert len(trajectory.segments) == 1
    assert not trajectory.lost_tokens


async def test_calls_of_two_turns_in_one_message_are_the_two_turns_that_were_sampled(rig, shell, call):
    rig.script(call(n=1) + "\n" + call(n=2), call(n=3), "done")
    session, user = await rig.open(), {"role": "user", "content": "go"}

    def results(*calls):
        return [
            {"role": "tool", "tool_call_id": made.id, "content": made.function.arguments} for made in calls
        ]

    first = (await rig.chat(session, user, tools=[shell])).choices[0].message
    history = [user, first.model_dump(exclude_none=True), *results(*first.tool_calls)]
    second = (await rig.chat(session, *history, tools=[shell])).choices[0].message
    calls = [*first.tool_calls, *second.tool_calls]
    merged = {"role": "assistant", "content": None, "tool_calls": [made.model_dump() for made in calls]}
    await rig.chat(session, user, merged, *results(*calls), tools=[shell])
    trajectory = await rig.end(session)
    assert len(trajectory.segments) == 1
    assert not trajectory.lost_tokens


def invented(call_id="call_made_up", **arguments):
    function = {"name": "shell", "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": function}


def result(call_id, content):
    return {"role": "tool", "tool_call_id": call_id, "content": content}


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_a_call_that_an_agent_put_beside_the_sampled_ones_is_told_and_trained_nowhere(
    rig, shell, call, at
):
    rig.script("I look.\n" + call(n=1) + "\n" + call(n=2), "done", "on")
    session, user = await rig.open(), {"role": "user", "content": "go"}
    first = (await rig.chat(session, user, tools=[shell])).choices[0].message
    calls = [made.model_dump() for made in first.tool_calls]
    results = [result(made["id"], "is " + made["function"]["arguments"]) for made in calls]
    calls.insert(at, invented(n=3))
    results.insert(at, result("call_made_up", "is three"))
    history = [user, {"role": "assistant", "content": "I look.", "tool_calls": calls}, *results]
    done = (await rig.chat(session, *history, tools=[shell])).choices[0].message
    await rig.chat(session, *history, done.model_dump(exclude_none=True), user, tools=[shell])
    first_call, second_call, _ = rig.engine.requests
    sampled = [*first_call.input_ids, *first_call.output_ids]
    assert second_call.input_ids[: len(sampled)] == sampled
    new = rig.codec.decode(second_call.input_ids[len(sampled) :])
    assert new.index("is {") < new.index('{"n": 3}') < new.index("is three"), "nothing is lost"
    assert "not sampled" in rig.tree(session).turn(1).extra["flags"][0]
    trajectory = await rig.end(session)
    assert len(trajectory.segments) == 1
    assert trajectory.trained_tokens == trajectory.sampled_tokens


BROKEN = [
    {"type": "function", "function": {"name": "shell", "arguments": "{}"}},
    {"id": 5, "type": "function", "function": {"name": "shell", "arguments": "{}"}},
    "shell",
    None,
    {"id": "", "type": "function", "function": {"name": "shell", "arguments": "{}"}},
]


@pytest.mark.parametrize("broken", BROKEN)
async def test_a_call_without_an_id_beside_sampled_ones_is_refused_by_name_or_taken(rig, shell, call, broken):
    rig.script(call(n=1), "done")
    session, user = await rig.open(), {"role": "user", "content": "go"}
    (made,) = (await rig.chat(session, user, tools=[shell])).choices[0].message.tool_calls
    message = {"role": "assistant", "content": None, "tool_calls": [made.model_dump(), broken]}
    body = {"messages": [user, message, result(made.id, "1")], "tools": [shell]}
    reply = await rig.post(session, body)
    assert reply.status_code in (200, 400), reply.text
    if reply.status_code == 400:
        assert reply.json()["error"]["param"].startswith("messages[1].tool_calls[1]")
