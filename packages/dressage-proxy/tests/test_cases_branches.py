"""Public failure cases about what is one branch and what is another, at the level of the proxy."""

import json

import pytest
from dressage_tito import ChatCodec
from dressage_tito.toy import TEMPLATE, write_toy_tokenizer


def echo(reply):
    return reply.choices[0].message.model_dump(exclude_none=True)


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def tool(name, description=""):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {}}}


CHANGES = {
    "one more": [tool("read"), tool("write"), tool("list")],
    "one less": [tool("read")],
    "another order": [tool("write"), tool("read")],
    "a space": [tool("read"), tool("write", " ")],
    "none": [],
}


async def test_c17_other_tools_start_a_new_segment_and_the_old_one_is_trained(rig):
    base = [tool("read"), tool("write")]
    for name, tools in CHANGES.items():
        session = await rig.open()
        first = await rig.chat(session, "go", tools=base)
        await rig.chat(session, "go", echo(first), "on", tools=tools)
        trajectory = await rig.end(session)
        assert [s.cut_reason for s in trajectory.segments] == ["", "tools_changed"], name
        assert trajectory.lost_tokens == {}
        hashes = {segment.tools_hash for segment in trajectory.segments}
        assert len(hashes) == 2
        for request, segment in zip(rig.engine.requests[-2:], trajectory.segments, strict=True):
            sent = request.input_ids + request.output_ids
            assert segment.token_ids[: len(sent)].tolist() == sent, "each in the context it was sampled in"


async def test_c17_a_final_turn_without_tool_choice_and_other_template_arguments_cut_too(rig):
    session = await rig.open()
    tools = [tool("read")]
    first = await rig.chat(session, "go", tools=tools)
    last = await rig.chat(session, "go", echo(first), "sum up", tools=tools, tool_choice="none")
    history = [user("go"), echo(first), user("sum up"), echo(last), user("more")]
    await rig.chat(session, *history, extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert [s.cut_reason for s in (await rig.end(session)).segments] == ["", "tools_changed", "tools_changed"]


async def test_c19_compaction_and_sub_agents_lose_no_output_and_share_one_rollout(rig):
    session = await rig.open()
    prompt, messages = system("You are an agent."), []
    for turn in range(3):
        messages.append(user(f"step {turn}"))
        messages.append(echo(await rig.chat(session, prompt, *messages)))
        if turn == 1:
            task = [system("You search files."), user("find a")]
            found = echo(await rig.chat(session, *task))
            await rig.chat(session, *task, found, user("and b"))
    summary = echo(await rig.chat(session, system("You are a summarizer."), user(json.dumps(messages))))
    later = [user("So far: " + summary["content"])]
    later.append(echo(await rig.chat(session, prompt, *later)))
    await rig.chat(session, prompt, *later, user("go on"))
    trajectory = await rig.end(session, outcome={"reward": 1.0})
    outputs = [len(request.output_ids) for request in rig.engine.requests]
    assert trajectory.sampled_tokens == trajectory.trained_tokens == sum(outputs)
    assert [(s.kind, len(s.calls), s.anchor) for s in trajectory.segments] == [
        ("main", 3, False),
        ("subagent", 2, False),
        ("compaction", 1, False),
        ("main", 2, True),
    ]
    assert len({segment.rollout_id for segment in trajectory.segments}) == 1
    calls = [call for segment in trajectory.segments for call in segment.calls]
    assert sorted(calls) == sorted(request.rid for request in rig.engine.requests)
    first = rig.engine.requests[-2]
    assert not trajectory.segments[3].loss_mask[: len(first.input_ids)].any(), "the copied summary"


async def test_c19_headers_and_helper_prompts_say_what_a_branch_is_for(rig):
    session = await rig.open()
    await rig.chat(session, "work")
    await rig.chat(session, "part", extra_headers={"x-claude-code-agent-id": "a1"})
    await rig.chat(session, "shorten", extra_headers={"x-codex-turn-metadata": '{"kind": "compaction"}'})
    await rig.chat(session, system("Generate a short title for this."), "work")
    trajectory = await rig.end(session)
    assert [segment.kind for segment in trajectory.segments] == ["main", "subagent", "compaction"]
    assert trajectory.lost_tokens == {"helper_call": len(rig.engine.requests[-1].output_ids)}


VOLATILE = {
    "nonce": ("x-vendor-billing: v=1; nonce=aa01;\nBe good.", "x-vendor-billing: v=1; nonce=bb02;\nBe good."),
    "midnight": ("Today: Mon\nBe good.", "Today: Tue\nBe good."),
    "date": ("Today's date is 2026-01-01\nBe good.", "Today's date is 2026-01-02\nBe good."),
    "nonce in other letters": ("X-Vendor-Trace-Id: a1", "X-Vendor-Trace-Id: b2"),
    "clock": ("Current time: 10:01", "Current time: 10:02"),
    "clock in words": ("The current time is 10:01 AM UTC.\nGo.", "The current time is 10:02 AM UTC.\nGo."),
    "stamp": ("Current datetime: 2026-01-02T10:01:02Z", "Current datetime: 2026-01-02T10:03:04Z"),
    "zone": ("Current date (UTC): 2026-01-02", "Current date (UTC): 2026-01-03"),
    "bare": ("Timestamp: 1767340800", "Timestamp: 1767340861"),
    "several lines": (
        "x-v-billing: 1\nToday: Mon\n\nCurrent time: 23:59\nBe good.",
        "x-v-billing: 2\nToday: Tue\n\nCurrent time: 00:01\nBe good.",
    ),
}


async def test_c21_volatile_lines_at_the_start_of_a_system_block_are_pinned_to_their_first_value(rig):
    for before, after in VOLATILE.values():
        for shape in (lambda text: text, lambda text: [{"type": "text", "text": text}]):
            session = await rig.open()
            first = await rig.chat(session, system(shape(before)), "go")
            await rig.chat(session, system(shape(after)), "go", echo(first), "on")
            assert len((await rig.end(session)).segments) == 1
            prompt = rig.codec.decode(rig.engine.requests[-1].input_ids)
            assert before in prompt
            assert after not in prompt


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (system("Be good.\nToday: Mon"), system("Be good.\nToday: Tue")),
        (system("Today: Mon\nBe good."), system("Today: Mon\nBe better.")),
        (system("Today is Monday. Plan it."), system("Today is Monday. Write it.")),
        (system("Today you plan."), system("Today you write.")),
        (system("Today: 3 bugs"), system("Today: 4 bugs")),
        (system("x-vendor: nonce=1"), system("x-vendor: nonce=2")),
        (system(f"x-{'v' * 60}-billing: 1"), system(f"x-{'v' * 60}-billing: 2")),
        (system(f"x-{'billing' * 20}: 1"), system(f"x-{'billing' * 20}: 2")),
        (system("Time: 10 minutes"), system("Time: 20 minutes")),
        (system("Today: Mon\nBe good.\nToday: Mon"), system("Today: Mon\nBe good.\nToday: Tue")),
        (user("Today: Mon"), user("Today: Tue")),
        (user("x-vendor-billing: nonce=1"), user("x-vendor-billing: nonce=2")),
    ],
)
async def test_c21_any_other_change_still_cuts_and_user_text_is_untouched(rig, before, after):
    session = await rig.open()
    first = await rig.chat(session, before, "go")
    await rig.chat(session, after, "go", echo(first), "on")
    prompts = [rig.codec.decode(request.input_ids) for request in rig.engine.requests]
    assert before["content"] in prompts[0]
    assert after["content"] in prompts[1]
    assert len((await rig.end(session)).segments) == 2


async def test_c21_lines_that_tell_different_things_do_not_take_each_others_values(rig):
    session = await rig.open()
    await rig.chat(session, system("Today: Mon\nYou plan."), "go")
    await rig.chat(session, system("Current time: 10:01\nYou help."), "go")
    assert "Current time: 10:01\nYou help." in rig.codec.decode(rig.engine.requests[-1].input_ids)


async def test_c21_the_pinned_value_survives_a_restart(rig, make_rig):
    session = await rig.open()
    first = await rig.chat(session, system("Today: Mon\nBe good."), "go")
    again = await make_rig(store=rig.store, engine=rig.engine)
    await again.chat(session, system("Today: Tue\nBe good."), "go", echo(first), "on")
    assert len((await again.end(session)).segments) == 1


async def test_c24_a_later_developer_message_is_rendered_in_place(rig):
    session = await rig.open()
    first = await rig.chat(session, system("A"), "go")
    history = [system("A"), user("go"), echo(first), {"role": "developer", "content": "B"}, user("on")]
    second = await rig.chat(session, *history)
    await rig.chat(session, *history, echo(second), user("more"))
    sent = rig.engine.requests
    for one, two in ((sent[0], sent[1]), (sent[1], sent[2])):
        whole = one.input_ids + one.output_ids
        assert two.input_ids[: len(whole)] == whole
    added = rig.codec.decode(sent[1].input_ids[len(sent[0].input_ids) + len(sent[0].output_ids) :])
    assert added.index("B") < added.index("on")
    (segment,) = (await rig.end(session)).segments
    assert segment.trained_tokens == sum(len(request.output_ids) for request in sent)


async def test_c24_leading_system_messages_are_joined_with_a_fixed_joiner(rig):
    session = await rig.open()
    lead = [system("A"), {"role": "developer", "content": "A2"}, system("A3")]
    first = await rig.chat(session, *lead, "go")
    await rig.chat(session, *lead, "go", echo(first), "on")
    prompt = rig.codec.decode(rig.engine.requests[0].input_ids)
    assert "A\n\nA2\n\nA3" in prompt
    assert len((await rig.end(session)).segments) == 1


async def test_c24_a_template_that_takes_no_later_system_message_is_given_it_as_a_note(make_rig, tmp_path):
    strict = TEMPLATE.replace(
        "{%- for message in messages %}",
        "{%- for message in messages %}{%- if message.role == 'system' and not loop.first %}"
        "{{- raise_exception('system comes first') }}{%- endif %}",
        1,
    )
    codec = ChatCodec.from_folder(write_toy_tokenizer(tmp_path / "strict", template=strict))
    rig = await make_rig(codec=codec)
    session = await rig.open()
    first = await rig.chat(session, system("A"), "go")
    await rig.chat(session, system("A"), "go", echo(first), system("B"), user("x"))
    assert "<|im_start|>user\n[system] B<|im_end|>" in rig.codec.decode(rig.engine.requests[1].input_ids)
    assert rig.tree(session).turn(1).extra["noted"] == 1
    assert len((await rig.end(session)).segments) == 1


class NativeIds:
    """The toy codec as of a family whose calls carry ids of their own: ``functions.NAME:N``."""

    def __init__(self, codec):
        self._codec = codec

    def __getattr__(self, name):
        return getattr(self._codec, name)

    def parse(self, ids, **options):
        from dataclasses import replace

        parsed = self._codec.parse(ids, **options)
        calls = [replace(c, id=f"functions.{c.name}:{n}") for n, c in enumerate(parsed.tool_calls)]
        return replace(parsed, tool_calls=tuple(calls))


@pytest.fixture
def native(tmp_path):
    template = TEMPLATE.replace(
        "'\\n<tool_response>\\n' + message", "'\\n<tool_response>\\n' + message.tool_call_id + ' ' + message"
    )
    assert template != TEMPLATE
    return NativeIds(ChatCodec.from_folder(write_toy_tokenizer(tmp_path / "native", template=template)))


async def test_c31_the_prompt_has_the_models_own_call_ids_and_the_wire_has_ours(
    make_rig, native, shell, call
):
    rig = await make_rig(codec=native)
    rig.script(call(command="a"), call(command="b"), "done")
    session = await rig.open()
    history = [user("go")]
    for turn in range(2):
        message = echo(await rig.chat(session, *history, tools=[shell]))
        wire = message["tool_calls"][0]["id"]
        assert wire.isalnum(), "no hop has a reason to rewrite it"
        history += [message, {"role": "tool", "tool_call_id": wire, "content": f"out {turn}"}]
    await rig.chat(session, *history, tools=[shell])
    prompt = native.decode(rig.engine.requests[-1].input_ids)
    assert prompt.count("functions.shell:0 out") == 2
    assert "call" + "0" not in prompt
    assert not any(message.get("tool_call_id", "-") in prompt for message in history)
    assert len((await rig.end(session)).segments) == 1


async def test_c31_the_map_of_ids_survives_a_restart(make_rig, native, shell, call):
    rig = await make_rig(codec=native)
    rig.script(call(command="a"), "done")
    session = await rig.open()
    message = echo(await rig.chat(session, "go", tools=[shell]))
    again = await make_rig(codec=native, store=rig.store, engine=rig.engine)
    answer = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "out"}
    await again.chat(session, "go", message, answer, tools=[shell])
    assert "functions.shell:0 out" in native.decode(rig.engine.requests[-1].input_ids)
    assert len((await again.end(session)).segments) == 1


async def test_c31_results_of_unknown_calls_are_reported(rig, shell, call):
    rig.script(call(command="a"), "done")
    session = await rig.open()
    message = echo(await rig.chat(session, "go", tools=[shell]))
    answer = {"role": "tool", "tool_call_id": "functions_shell_0", "content": "out"}
    await rig.chat(session, "go", message, answer, tools=[shell])
    (flag,) = rig.tree(session).turn(1).extra["flags"]
    assert "messages[2]" in flag
    assert "functions_shell_0" in flag


async def test_e07_wire_ids_are_unique_in_a_session_whatever_the_client_cuts_away(rig, shell, call):
    rig.script(call(command="same"))
    session = await rig.open()
    history, seen = [user("go")], []
    for _ in range(6):
        message = echo(await rig.chat(session, *history, tools=[shell]))
        wire = message["tool_calls"][0]["id"]
        seen.append(wire)
        history += [message, {"role": "tool", "tool_call_id": wire, "content": "out"}]
        history = [history[0], *history[-4:]]
    assert len(set(seen)) == len(seen)
    trajectory = await rig.end(session)
    assert trajectory.trained_tokens == trajectory.sampled_tokens


async def test_e09_a_call_of_an_undefined_tool_is_forwarded_as_written(rig, call):
    for stream in (False, True):
        rig.script(call("Read", path="x"))
        session = await rig.open()
        reply = await rig.chat(session, "go", tools=[tool("View")], stream=stream)
        if stream:
            deltas = [c.choices[0] async for c in reply]
            names = [t.function.name for d in deltas for t in d.delta.tool_calls or [] if t.function.name]
            finish = [d.finish_reason for d in deltas if d.finish_reason]
        else:
            names = [t.function.name for t in reply.choices[0].message.tool_calls]
            finish = [reply.choices[0].finish_reason]
        assert (names, finish) == (["Read"], ["tool_calls"])


async def test_c60_history_that_was_rewritten_opens_a_new_segment_at_once(rig, shell, call):
    rig.script("hello", call(command="cat log"), "seen", "later", "last")
    session = await rig.open()
    lead = system("Be brief.")
    first = echo(await rig.chat(session, lead, "[10:01] hi", tools=[shell]))
    second = echo(await rig.chat(session, lead, "hi", first, "read", tools=[shell]))
    wire = second["tool_calls"][0]["id"]
    base = [lead, user("hi"), first, user("read"), second]
    for content in ("line\n" * 100, "100 lines -> [cut]", "[cleared]"):
        history = [*base, {"role": "tool", "tool_call_id": wire, "content": content}]
        third = echo(await rig.chat(session, *history, tools=[shell]))
        await rig.chat(session, *history, third, "on", tools=[shell])
    trajectory = await rig.end(session)
    assert trajectory.trained_tokens == trajectory.sampled_tokens, "each trained once, in its true context"
    reasons = [segment.cut_reason for segment in trajectory.segments]
    assert reasons == ["", "history_changed", "branched", "branched"]
    prompts = {request.rid: request for request in rig.engine.requests}
    for segment in trajectory.segments:
        for call_id in segment.calls:
            sent = prompts[call_id].input_ids
            assert segment.token_ids[: len(sent)].tolist() == sent


async def test_c60_a_rewritten_assistant_turn_without_calls_is_not_taken_for_the_sampled_one(rig):
    rig.script("hello there")
    session = await rig.open()
    await rig.chat(session, "hi")
    await rig.chat(session, "hi", {"role": "assistant", "content": "hello [cut]"}, "on")
    assert [s.cut_reason for s in (await rig.end(session)).segments] == ["", "history_changed"]
    assert "hello [cut]" in rig.codec.decode(rig.engine.requests[1].input_ids)
