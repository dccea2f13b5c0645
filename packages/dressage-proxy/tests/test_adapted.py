"""Conversations that a chat template does not take as they are: adapted and noted, never lost or moved."""

import pytest
from dressage_tito import ChatCodec
from dressage_tito.toy import TEMPLATE, write_toy_tokenizer

LATER = "{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}"
NO_LATER_SYSTEM = TEMPLATE.replace(
    LATER,
    "{%- if message.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}"
    "{%- elif message.role == 'user' %}",
)
ALTERNATING = NO_LATER_SYSTEM.replace(
    "{%- for message in messages %}",
    "{%- for message in messages %}"
    "{%- if message.role == 'user' and not loop.first and messages[loop.index0 - 1].role == 'user' %}"
    "{{ raise_exception('Roles must alternate.') }}{%- endif %}",
)
RESULT = "{{- '\\n<tool_response>\\n' + message.content"
NAMES = TEMPLATE.replace(RESULT, "{{- '\\n<tool_response>\\n' + message.name + ': ' + message.content")
RUN = {"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}


def said(role, text):
    return {"role": role, "content": text}


def echo(reply):
    return reply.choices[0].message.model_dump(exclude_none=True)


@pytest.fixture
def over(make_rig, tmp_path):
    """A proxy whose model has this template."""

    async def made(template):
        folder = write_toy_tokenizer(tmp_path / "model", template=template)
        return await make_rig(codec=ChatCodec.from_folder(folder))

    return made


def test_the_templates_of_this_test_differ_from_the_toys():
    assert len({TEMPLATE, NO_LATER_SYSTEM, ALTERNATING, NAMES}) == 4


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("template", [NO_LATER_SYSTEM, ALTERNATING])
async def test_c24_a_later_system_message_is_a_note_in_its_place_where_the_template_takes_none(
    over, template, role
):
    rig = await over(template)
    session = await rig.open()
    history = [said("system", "A"), said("user", "go"), said(role, "B")]
    first = await rig.chat(session, *history)
    history += [echo(first), said(role, "C"), said("user", "on")]
    second = await rig.chat(session, *history)
    await rig.chat(session, *history, echo(second), said("user", "last"))
    prompt = rig.codec.decode(rig.engine.requests[-1].input_ids)
    places = [prompt.index(text) for text in ("A", "go", "[system] B", "[system] C", "on", "last")]
    assert places == sorted(places)
    turns = rig.tree(session).turns
    assert [turn.extra.get("noted", 0) for turn in turns] == [1, 1, 0]
    assert [bool(turn.extra.get("joined")) for turn in turns] == [template == ALTERNATING] * 2 + [False]
    assert len((await rig.end(session)).segments) == 1


async def test_a_developer_who_leads_is_the_system_where_the_template_drops_developers_beside_tools(over):
    user = "{%- if message.role == 'user' or"
    assert user in TEMPLATE
    developers = (
        "{%- if message.role == 'developer' and tools %}{%- elif message.role in ['user', 'developer'] or"
    )
    rig = await over(TEMPLATE.replace(user, developers))
    session = await rig.open()
    history = [said("developer", "A lead"), said("user", "go")]
    first = await rig.chat(session, *history, tools=[RUN])
    await rig.chat(session, *history, echo(first), said("user", "on"), tools=[RUN])
    assert "A lead" in rig.codec.decode(rig.engine.requests[0].input_ids)
    assert "noted" not in rig.tree(session).turn(0).extra
    assert len((await rig.end(session)).segments) == 1


async def test_c24_a_later_system_message_stays_one_where_the_template_takes_it(rig):
    session = await rig.open()
    await rig.chat(session, said("system", "A"), said("user", "go"), said("system", "B"))
    assert "<|im_start|>system\nB<|im_end|>" in rig.codec.decode(rig.engine.requests[0].input_ids)
    assert "noted" not in rig.tree(session).turn(0).extra


async def test_users_messages_in_a_row_are_one_where_the_template_wants_turns(over):
    rig = await over(ALTERNATING)
    session = await rig.open()
    history = [said("user", "one"), said("user", "two")]
    first = await rig.chat(session, *history)
    await rig.chat(session, *history, echo(first), said("user", "three"), said("user", "four"))
    prompt = rig.codec.decode(rig.engine.requests[-1].input_ids)
    assert "one\n\ntwo<|im_end|>" in prompt
    assert "three\n\nfour<|im_end|>" in prompt
    assert [turn.extra["joined"] for turn in rig.tree(session).turns] == [1, 1]
    assert len((await rig.end(session)).segments) == 1


async def test_what_cannot_be_adapted_is_refused_in_the_templates_words(over):
    picky = "{%- elif message.role == 'user' %}"
    assert picky in NO_LATER_SYSTEM
    rig = await over(NO_LATER_SYSTEM.replace(picky, "{%- elif message.content == 'go' %}"))
    session = await rig.open()
    body = {"messages": [said("user", "go"), said("system", "B"), said("user", "other")]}
    reply = await rig.post(session, body)
    assert reply.status_code == 400
    assert "must be at the beginning" in reply.json()["error"]["message"]
    assert rig.engine.requests == []


@pytest.mark.parametrize("tools_go", [False, True])
async def test_results_carry_the_names_of_their_own_calls_in_any_order(over, call, tools_go):
    """Templates that print a result's name; a compaction sends the same history without tools."""
    rig = await over(NAMES)
    rig.script(call("run", n=1) + "\n" + call("look", n=2), "done")
    session = await rig.open()
    first = await rig.chat(session, said("user", "go"), tools=[RUN])
    run, look = first.choices[0].message.tool_calls
    results = [
        {"role": "tool", "tool_call_id": made.id, "content": text} for made, text in ((look, "L"), (run, "R"))
    ]
    tools = [] if tools_go else [RUN]
    await rig.chat(session, said("user", "go"), echo(first), *results, tools=tools)
    prompt = rig.codec.decode(rig.engine.requests[-1].input_ids)
    assert "look: L" in prompt
    assert "run: R" in prompt
    turn = rig.tree(session).turn(1)
    assert turn.extra.get("copied", 0) == tools_go
    assert "rendered" not in turn.extra


async def test_a_result_of_a_call_that_was_not_sampled_here_has_the_name_of_that_call(over):
    rig = await over(NAMES)
    function = {"name": "peek", "arguments": "{}"}
    calls = [{"id": "x", "type": "function", "function": function}]
    history = [
        said("user", "go"),
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "x", "content": "P"},
    ]
    await rig.chat(await rig.open(), *history, tools=[RUN])
    assert "peek: P" in rig.codec.decode(rig.engine.requests[-1].input_ids)
