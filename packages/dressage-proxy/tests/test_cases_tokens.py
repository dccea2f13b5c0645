"""Public failure cases about ids, logprobs and sampling parameters, at the level of the proxy."""

import json
import random

import openai
import pytest
from dressage_proxy.engine.scripted import Fault, Output


def echo(reply):
    """The assistant message as a client sends it back."""
    return reply.choices[0].message.model_dump(exclude_none=True)


def sampled_after(first, second):
    """The second engine request begins with all that the first was given and sampled."""
    whole = first.input_ids + first.output_ids
    return second.input_ids[: len(whole)] == whole


async def test_c01_sampled_ids_are_kept_although_their_text_has_a_shorter_spelling(rig):
    split = [*rig.ids("a"), *rig.ids("b")]
    (merged,) = rig.ids("ab")
    assert len(split) == 2
    rig.script_raw([*split, rig.codec.stop_token_ids[0]])
    session = await rig.open()
    first = await rig.chat(session, "hi")
    assert first.choices[0].message.content == "ab"
    await rig.chat(session, "hi", echo(first), "now the tool says ok")
    one, two = rig.engine.requests
    assert sampled_after(one, two)
    assert merged not in one.output_ids
    (segment,) = (await rig.end(session)).segments
    start = len(one.input_ids)
    assert segment.token_ids[start : start + 2].tolist() == split
    assert segment.loss_mask[start : start + 3].tolist() == [1, 1, 1]
    assert (segment.logprobs[start : start + 3] < 0).all()


async def test_c01_any_ids_whatever_they_spell_are_kept(rig, shell):
    """The kind: random ids, so also broken UTF-8, lonely markup, control tokens of the model's own."""
    rng = random.Random(1)
    plain = [i for i in range(rig.codec.vocab_size) if i not in rig.codec.stop_token_ids]
    special = rig.codec.control_ids - set(rig.codec.stop_token_ids)
    for round_ in range(60):
        ids = rng.choices(plain, k=rng.randint(1, 12))
        if round_ % 2:
            ids = [i for i in ids if i not in special] or [64]
        rig.script_raw([*ids, rig.codec.stop_token_ids[0]])
        session = await rig.open()
        first = await rig.chat(session, "hi", tools=[shell])
        await rig.chat(session, "hi", echo(first), "next", tools=[shell])
        one, two = rig.engine.requests[-2:]
        assert one.output_ids[:-1] == ids
        assert sampled_after(one, two), rig.codec.decode(ids)
        assert len((await rig.end(session)).segments) == 1


async def test_c06_thinking_that_the_client_drops_stays_in_the_context_it_was_sampled_in(rig):
    rig.script("<think>\nwell\n</think>\n\nfour", "five")
    session = await rig.open()
    await rig.chat(session, "2+2")
    await rig.chat(session, "2+2", {"role": "assistant", "content": "four"}, "2+3")
    one, two = rig.engine.requests
    assert sampled_after(one, two), "ids decide, not messages"
    assert len((await rig.end(session)).segments) == 1


async def test_c06_where_the_ids_cannot_be_joined_a_new_segment_starts(rig):
    (foreign,) = rig.ids("<|endoftext|>")
    rig.script_raw(Output([*rig.ids("four"), foreign], matched=foreign))
    session = await rig.open()
    first = await rig.chat(session, "2+2")
    await rig.chat(session, "2+2", echo(first), "2+3")
    one, two = rig.engine.requests
    assert not sampled_after(one, two)
    trajectory = await rig.end(session)
    assert [segment.cut_reason for segment in trajectory.segments] == ["", "refused_stop_mismatch"]
    assert trajectory.trained_tokens == len(one.output_ids) + len(two.output_ids)
    copied = trajectory.segments[1].loss_mask[: len(two.input_ids)]
    assert not copied.any(), "context that was copied is not trained again"


async def test_c07_a_first_request_sent_again_poisons_nothing(rig, shell, call):
    rig.script("lost", call(command="ls"), "done")
    session = await rig.open()
    await rig.chat(session, "u1", tools=[shell])
    second = await rig.chat(session, "u1", tools=[shell])
    for bad in ({"n": 5}, {"temperature": 99}):
        with pytest.raises(openai.BadRequestError):
            await rig.chat(session, "u1", tools=[shell], **bad)
    answer = {
        "role": "tool",
        "tool_call_id": second.choices[0].message.tool_calls[0].id,
        "content": "a.txt",
    }
    await rig.chat(session, "u1", echo(second), answer, tools=[shell])
    sent = rig.engine.requests
    assert sampled_after(sent[1], sent[2])
    trajectory = await rig.end(session)
    assert len(trajectory.segments) == 1
    assert trajectory.lost_tokens == {"retry": len(sent[0].output_ids)}


ARGUMENTS = '{"path": "café/a.txt","n":1.0,"b":1,"a":2}'
HOPS = {
    "as it was": lambda text: text,
    "python": lambda text: json.dumps(json.loads(text)),
    "compact": lambda text: json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False),
    "sorted": lambda text: json.dumps(json.loads(text), sort_keys=True),
    "javascript": lambda text: json.dumps({**json.loads(text), "n": 1}, separators=(",", ":")),
    "slashes": lambda text: text.replace("/", "\\/"),
}


async def test_c10_a_call_written_again_by_another_json_writer_keeps_the_sampled_ids(rig, shell):
    for name, hop in HOPS.items():
        rig.script(f'<tool_call>\n{{"name": "shell", "arguments": {ARGUMENTS}}}\n</tool_call>', "ok")
        session = await rig.open()
        message = echo(await rig.chat(session, "go", tools=[shell]))
        call = message["tool_calls"][0]
        assert call["function"]["arguments"] == ARGUMENTS, "the model's own text"
        call["function"]["arguments"] = hop(ARGUMENTS)
        answer = {"role": "tool", "tool_call_id": call["id"], "content": "x"}
        await rig.chat(session, "go", message, answer, tools=[shell])
        assert sampled_after(*rig.engine.requests[-2:]), name
        assert len((await rig.end(session)).segments) == 1


async def test_c10_a_tool_schema_written_otherwise_is_a_cut_and_one_only_escaped_is_none(rig, shell):
    shell = json.loads(json.dumps(shell))
    shell["function"]["description"] = "a < b / c é"
    plain = json.dumps(shell, ensure_ascii=False)
    escaped = json.dumps(shell).replace("<", "\\u003c").replace("/", "\\/")
    turned = json.dumps(shell, sort_keys=True)
    cuts = {}
    for name, tools in (("escaped", escaped), ("sorted", turned)):
        session = await rig.open()
        history = [{"role": "user", "content": "go"}]
        reply = await raw(rig, session, history, plain)
        history += [reply.json()["choices"][0]["message"], {"role": "user", "content": "on"}]
        await raw(rig, session, history, tools)
        cuts[name] = [segment.cut_reason for segment in (await rig.end(session)).segments]
    assert cuts == {"escaped": [""], "sorted": ["", "tools_changed"]}


def raw(rig, session, messages, tools_text):
    text = f'{{"messages": {json.dumps(messages)}, "tools": [{tools_text}]}}'
    return rig.http.post(f"/s/{session}/v1/chat/completions", content=text.encode())


async def test_c14_an_image_is_refused_with_a_clear_4xx_wherever_it_stands(rig, shell, call):
    rig.script(call(command="ls"), "ok")
    session = await rig.open()
    message = echo(await rig.chat(session, "go", tools=[shell]))
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    for role in (
        {"role": "user"},
        {"role": "system"},
        {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"]},
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            await rig.chat(session, "go", message, {**role, "content": [image]}, tools=[shell])
        assert caught.value.param == "messages[2].content[0].type"
        assert "image_url" in caught.value.message
    assert len(rig.engine.requests) == 1, "nothing was sampled without it"
    answer = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "a"}
    await rig.chat(session, "go", message, answer, tools=[shell])
    assert len((await rig.end(session)).segments) == 1


MISALIGNED = {
    Fault.SHORT_LOGPROBS: "misaligned",
    Fault.LONG_LOGPROBS: "misaligned",
    Fault.OTHER_IDS: "misaligned",
    Fault.WRONG_COUNT: "misaligned",
    Fault.NO_LOGPROBS: "missing_logprobs",
    Fault.NULL_LOGPROB: "missing_logprobs",
}


async def test_c15_evidence_that_does_not_line_up_is_kept_as_context_and_never_trained(rig):
    for fault, cause in MISALIGNED.items():
        rig.script("abcd", "efgh")
        session = await rig.open()
        rig.engine.inject(fault)
        first = await rig.chat(session, "hi")
        assert first.choices[0].message.content == "abcd", "the agent has its reply"
        await rig.chat(session, "hi", echo(first), "on")
        one, two = rig.engine.requests[-2:]
        assert sampled_after(one, two)
        trajectory = await rig.end(session)
        assert trajectory.lost_tokens == {cause: len(one.output_ids)}
        assert trajectory.trained_tokens == len(two.output_ids)
        (segment,) = trajectory.segments
        assert not segment.loss_mask[: len(two.input_ids)].any()


async def test_c15_ids_past_the_stop_string_leave_the_context_too(rig):
    kept, past = rig.ids("abEND"), rig.ids(" more")
    rig.script_raw(Output([*kept, *past], matched="END"), [*rig.ids("next"), rig.codec.stop_token_ids[0]])
    session = await rig.open()
    first = await rig.chat(session, "hi", stop="END")
    assert (first.choices[0].message.content, first.choices[0].finish_reason) == ("ab", "stop")
    await rig.chat(session, "hi", echo(first), "on", stop="END")
    one, two = rig.engine.requests
    after = two.input_ids[len(one.input_ids) :]
    assert after[: len(kept)] == kept
    assert after[len(kept) : len(kept) + len(past)] != past
    (segment,) = (await rig.end(session)).segments
    start = len(one.input_ids)
    assert segment.loss_mask[start : start + len(kept) + 1].tolist() == [1] * len(kept) + [0]


async def test_c16_parameters_that_differ_between_calls_are_flagged_in_the_segment(rig):
    session = await rig.open()
    first = await rig.chat(session, "hi", temperature=1.0)
    await rig.chat(session, "hi", echo(first), "on", temperature=0.2, top_p=0.5)
    one, two = rig.engine.requests
    assert (one.sampling_params["temperature"], two.sampling_params["temperature"]) == (1.0, 0.2)
    (segment,) = (await rig.end(session)).segments
    assert segment.sampling["temperature"] == 1.0
    assert segment.sampling["overrides"][two.rid]["temperature"] == 0.2
    assert segment.sampling["overrides"][two.rid]["top_p"] == 0.5


async def test_c16_a_rollout_that_fixes_its_parameters_is_sampled_with_them_whatever_the_agent_says(rig):
    fixed = {"temperature": 0.7, "top_p": 0.95, "top_k": 40}
    session = await rig.open(sampling=fixed)
    reply = await rig.chat(session, "hi", temperature=0.0, top_p=0.1, extra_body={"top_k": 1})
    await rig.chat(session, "hi", echo(reply), "on")
    for request in rig.engine.requests:
        assert {name: request.sampling_params[name] for name in fixed} == fixed
    (segment,) = (await rig.end(session)).segments
    assert "overrides" not in segment.sampling
    assert {name: segment.sampling[name] for name in fixed} == fixed


async def test_e03_content_that_is_null_empty_or_missing_gives_the_same_ids(rig, shell, call):
    calls = [{"id": "c1", "type": "function", "function": {"name": "shell", "arguments": "{}"}}]
    answer = {"role": "tool", "tool_call_id": "c1", "content": "out"}
    prompts = []
    for content in ({"content": None}, {"content": ""}, {}, {"content": []}):
        session = await rig.open()
        message = {"role": "assistant", "tool_calls": calls, **content}
        reply = await rig.post(
            session,
            {"messages": [{"role": "user", "content": "go"}, message, answer], "tools": [shell]},
        )
        assert reply.status_code == 200
        prompts.append(rig.engine.requests[-1].input_ids)
    assert all(prompt == prompts[0] for prompt in prompts)
    text = rig.codec.decode(prompts[0])
    assert "None" not in text
    assert '<tool_call>\n{"name": "shell"' in text, "the turn is not dropped"


async def test_e03_an_echo_with_any_of_them_is_the_recorded_turn(rig, shell, call):
    for content in ({"content": None}, {"content": ""}, {}, {"content": []}):
        rig.script(call(command="ls"), "ok")
        session = await rig.open()
        message = echo(await rig.chat(session, "go", tools=[shell]))
        message.pop("content", None)
        answer = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "x"}
        await rig.chat(session, "go", {**message, **content}, answer, tools=[shell])
        assert sampled_after(*rig.engine.requests[-2:])
        assert len((await rig.end(session)).segments) == 1


MALFORMED = [
    ["hi"], [5], [None], [[]], [{}], [{"role": "user"}, "x"], [{"role": "wizard", "content": "x"}],
    [{"role": 3, "content": "x"}], [{"role": "user", "content": 5}], [{"role": "user", "content": {"a": 1}}],
    [{"role": "tool", "content": "x"}], [{"role": "user", "content": "x", "tool_calls": [{}]}],
    [{"role": "assistant", "tool_calls": ["x"]}], [{"role": "assistant", "tool_calls": {}}],
    [{"role": "assistant", "tool_calls": [{"id": 5, "function": {"name": "f"}}]}],
    [{"role": "assistant", "tool_calls": [{"id": "a", "function": {}}]}],
    [{"role": "assistant", "tool_calls": [{"id": "a", "type": "custom"}]}],
]  # fmt: skip


async def test_e18_a_malformed_message_is_a_400_and_the_session_is_unharmed(rig):
    session = await rig.open()
    first = await rig.chat(session, "hi")
    for messages in MALFORMED:
        reply = await rig.post(session, {"messages": messages})
        expected = 200 if messages[0] == {"role": "user"} and len(messages) == 1 else 400
        assert reply.status_code == expected, messages
        assert reply.json()["error"]["param"].startswith("messages["), messages
        again = [{"role": "user", "content": "hi"}, echo(first), *messages]
        assert (await rig.post(session, {"messages": again})).status_code == 400
    await rig.chat(session, "hi", echo(first), "on")
    assert sampled_after(*rig.engine.requests)
    trajectory = await rig.end(session)
    assert len(trajectory.segments) == 1
    assert trajectory.lost_tokens == {}
