"""Agents that speak in turn over one conversation: it ends with what the one before said."""

import pytest

ROUTES = ["chat/completions", "responses"]


def user(text):
    return {"role": "user", "content": text}


async def ask(rig, session, route, system, messages, **body):
    """The reply's text; ``messages`` are (role, text)."""
    said = [{"role": role, "content": text} for role, text in (("system", system), *messages)]
    sent = {"model": "m", "messages" if route == "chat/completions" else "input": said, **body}
    reply = await rig.http.post(f"/s/{session}/v1/{route}", json=sent)
    assert reply.status_code == 200, reply.text
    if route == "chat/completions":
        return reply.json()["choices"][0]["message"]["content"]
    return reply.json()["output"][0]["content"][0]["text"]


@pytest.mark.parametrize("route", ROUTES)
async def test_an_agent_answers_what_another_agent_said_last(rig, route):
    rig.script("draft", "critique", "better", "fine")
    session = await rig.open()
    talk = [("user", "write")]
    for system in ("writer", "critic", "writer", "critic"):
        talk.append(("assistant", await ask(rig, session, route, system, talk)))
    assert [text for _, text in talk] == ["write", "draft", "critique", "better", "fine"]
    prompt = rig.codec.decode(rig.engine.requests[3].input_ids)
    last = "".join(f"<|im_start|>assistant\n{text}<|im_end|>\n" for text in ("draft", "critique", "better"))
    assert prompt.endswith(last + "<|im_start|>assistant\n")
    assert [turn.parent for turn in rig.tree(session).turns] == [-1, -1, 0, 1]
    trajectory = await rig.end(session)
    assert trajectory.trained_tokens == trajectory.sampled_tokens


@pytest.mark.parametrize("route", ROUTES)
async def test_an_agent_may_speak_again_after_its_own_words(rig, route):
    rig.script("one", "two", "three")
    session = await rig.open()
    talk = [("user", "go")]
    for _ in range(2):
        talk.append(("assistant", await ask(rig, session, route, "be", talk)))
    await ask(rig, session, route, "be", [*talk, ("user", "more")])
    prompt = rig.codec.decode(rig.engine.requests[1].input_ids)
    assert prompt.endswith("<|im_start|>assistant\none<|im_end|>\n<|im_start|>assistant\n")
    assert [turn.parent for turn in rig.tree(session).turns] == [-1, 0, 1]
    trajectory = await rig.end(session)
    assert len(trajectory.segments) == 1
    assert trajectory.trained_tokens == trajectory.sampled_tokens


async def test_the_beginning_of_a_reply_is_still_refused_where_that_is_what_it_means(rig):
    session = await rig.open()
    messages = [user("x"), {"role": "assistant", "content": "y"}]
    body = {"model": "m", "max_tokens": 9, "messages": messages}
    reply = await rig.http.post(f"/s/{session}/v1/messages", json=body)
    assert reply.status_code == 400
    assert "last message" in reply.json()["error"]["message"]


@pytest.mark.parametrize("extra", [{"continue_final_message": True}, {"add_generation_prompt": False}])
async def test_a_chat_that_asks_for_its_last_message_to_be_continued_is_refused_by_name(rig, extra):
    session = await rig.open()
    messages = [user("x"), {"role": "assistant", "content": "y"}]
    reply = await rig.post(session, {"messages": messages, **extra})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, next(iter(extra)))
