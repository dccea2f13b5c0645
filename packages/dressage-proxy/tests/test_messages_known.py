"""Tools that Anthropic's API defines by their type alone, and whose clients carry them out."""

import json

import pytest
from dressage_proxy.dialects.messages_known import DEFINED

NAMES = {"bash": "bash", "text_editor": "str_replace_based_edit_tool", "memory": "memory"}


def tool(kind, **more):
    return {"type": kind, "name": NAMES[kind.rpartition("_")[0]], **more}


async def send(rig, session, messages, tools):
    body = {"model": "m", "max_tokens": 500, "messages": messages, "tools": tools}
    reply = await rig.http.post(f"/s/{session}/v1/messages", json=body)
    return reply.status_code, reply.json()


def user(content):
    return {"role": "user", "content": content}


@pytest.mark.parametrize("kind", DEFINED)
async def test_a_tool_that_is_known_by_its_type_is_offered_and_called_as_any_other(rig, call, kind):
    name = NAMES[kind.rpartition("_")[0]]
    asked = {"command": "view", "path": "/a"} if name != "bash" else {"command": "ls"}
    rig.script(call(name, **asked), "done")
    session, messages = await rig.open(), [user("q")]
    tools = [tool(kind, cache_control={"type": "ephemeral"})]
    status, said = await send(rig, session, messages, tools)
    assert (status, said["stop_reason"]) == (200, "tool_use"), said
    (block,) = said["content"]
    assert (block["name"], block["input"]) == (name, asked)
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": "out"}
    await send(
        rig, session, [*messages, {"role": "assistant", "content": said["content"]}, user([result])], tools
    )
    description, schema = DEFINED[kind]
    prompt = rig.codec.decode(rig.engine.requests[0].input_ids)
    assert description in prompt
    assert all(json.dumps(part) in prompt for part in schema["properties"])
    assert "warnings" not in rig.tree(session).turn(0).extra, "the call fits the schema"
    assert len((await rig.end(session)).segments) == 1


def test_what_versions_differ_in_is_told():
    editors = {kind: schema["properties"] for kind, (_, schema) in DEFINED.items() if "editor" in kind}
    undo = {kind for kind, fields in editors.items() if "undo_edit" in fields["command"]["enum"]}
    assert undo == {"text_editor_20241022", "text_editor_20250124"}
    assert all("With insert" in fields["new_str"]["description"] for fields in editors.values())
    assert {kind for kind, fields in editors.items() if "insert_text" in fields} == {"text_editor_20250728"}
    assert set(DEFINED["memory_20250818"][1]["properties"]["command"]["enum"]) >= {"delete", "rename"}


async def test_the_clients_own_cap_of_what_it_shows_is_taken(rig):
    status, _ = await send(
        rig, await rig.open(), [user("q")], [tool("text_editor_20250728", max_characters=999)]
    )
    assert status == 200


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"type": "bash_20991231", "name": "bash"}, "tools[0].type"),
        ({"type": "computer_20250124", "name": "computer", "display_width_px": 9}, "tools[0].type"),
        ({"type": 7, "name": "bash"}, "tools[0].type"),
        ({"type": "bash_20250124"}, "tools[0].name"),
        (
            {"type": "bash_20250124", "name": "bash", "input_schema": {"type": "object"}},
            "tools[0].input_schema",
        ),
    ],
)
async def test_what_is_not_known_of_a_tool_is_refused_by_name(rig, given, field):
    status, said = await send(rig, await rig.open(), [user("q")], [given])
    assert status == 400
    assert field in said["error"]["message"]
    assert rig.engine.requests == []
