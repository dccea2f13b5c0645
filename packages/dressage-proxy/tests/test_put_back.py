"""Text that agents put behind a turn that the model closed by itself: a stop string, or a text of its own."""

import pytest

STEP = 'Thought: look\nAction: shell\nAction Input: {"command": "ls"}'
END = "Thought: done\nFinal Answer: 42"
CODE = "Thought: look\n<code>\nls()\n"
TAG = "</code>"


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


async def ask(rig, session, messages, stop=()):
    reply = await rig.post(session, {"messages": messages, "stop": list(stop) or None})
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize("put", [TAG, f"\n{TAG}", f" {TAG}\n"])
@pytest.mark.parametrize("reset", [False, True], ids=["remembered", "read anew"])
async def test_a_stop_string_behind_a_turn_that_ended_without_it_makes_it_no_other_turn(rig, reset, put):
    rig.script("no code", END, END)
    session = await rig.open()
    messages = [user("q")]
    for number in range(3):
        said = await ask(rig, session, messages, stop=["Observation:", TAG])
        messages += [assistant(said + put), user(f"go on {number}")]
        if reset:
            live = rig.proxy.sessions.live(session)
            live.recents.clear()
            live.echoes.added.clear()
    assert TAG not in rig.codec.decode(rig.engine.requests[2].input_ids)
    turns = rig.tree(session).turns
    assert [turn.parent for turn in turns] == [-1, 0, 1]
    assert turns[2].extra["flags"][-1] == "messages[3] is not what was returned as turn 1"
    (segment,) = (await rig.end(session)).segments
    assert segment.trained_tokens == sum(len(call.output_ids) for call in rig.engine.requests)


@pytest.mark.parametrize(
    "put", [f"{TAG}\nCalling tools: ls", f"{TAG}ls", f"{TAG} ls", f"{TAG} []", f"{TAG}\n-"]
)
async def test_what_is_put_behind_a_stop_string_that_was_not_sampled_is_not_lost(rig, put):
    rig.script(CODE, END)
    session = await rig.open()
    said = await ask(rig, session, [user("q")], stop=[TAG])
    echo = assistant(said.rstrip() + put)
    await ask(rig, session, [user("q"), echo, user("go on")], stop=[TAG])
    prompt = rig.codec.decode(rig.engine.requests[1].input_ids)
    assert f"<|im_start|>assistant\n{put}<|im_end|>" in prompt
    assert rig.tree(session).turn(1).extra["flags"] == [
        "messages[2] was put behind what the model said, in the same message"
    ]
    assert len((await rig.end(session)).segments) == 1


BLOCKS = {
    "chat/completions": lambda texts: [{"type": "text", "text": text} for text in texts],
    "messages": lambda texts: [{"type": "text", "text": text} for text in texts],
    "responses": lambda texts: [{"type": "output_text", "text": text, "annotations": []} for text in texts],
}


@pytest.mark.parametrize("route", BLOCKS)
async def test_a_further_text_of_a_message_was_put_behind_what_the_first_ones_say(rig, route):
    rig.script(STEP, END, END)
    session = await rig.open()
    messages = [user("q")]
    for _ in range(3):
        named = {"input" if route == "responses" else "messages": messages, "model": "m"}
        cap = {"max_tokens": 99} if route == "messages" else {}
        reply = await rig.http.post(f"/s/{session}/v1/{route}", json=named | cap)
        assert reply.status_code == 200, reply.text
        texts = [STEP[:7], STEP[7:], "Calling tools: ls"]
        messages = [user("q"), assistant(BLOCKS[route](texts)), user("go on")]
    prompt = rig.codec.decode(rig.engine.requests[1].input_ids)
    step = f"<|im_start|>assistant\n{STEP}<|im_end|>\n<|im_start|>assistant\n{texts[2]}<|im_end|>\n"
    assert step in prompt
    assert [turn.parent for turn in rig.tree(session).turns] == [-1, 0, 0]
    await rig.end(session)


@pytest.mark.parametrize("texts", [[STEP + "!", " more"], [STEP[:-1], "}!", "more"], [STEP + "! more"]])
async def test_a_text_that_the_first_ones_do_not_say_is_another_message(rig, texts):
    rig.script(STEP, END)
    session = await rig.open()
    await ask(rig, session, [user("q")])
    echo = assistant([{"type": "text", "text": text} for text in texts])
    await ask(rig, session, [user("q"), echo, user("go on")])
    assert rig.tree(session).turn(1).parent == -1


@pytest.mark.parametrize("put", [f"x{TAG}", "</div>", "!"])
async def test_another_ending_than_a_stop_string_is_another_message(rig, put):
    rig.script("no code", END)
    session = await rig.open()
    said = await ask(rig, session, [user("q")], stop=[TAG])
    await ask(rig, session, [user("q"), assistant(said + put), user("go on")], stop=[TAG])
    assert rig.tree(session).turn(1).parent == -1
