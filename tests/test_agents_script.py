"""What ``make agents`` does around the real programs: its plans, its view of the wire, its judgement."""

from __future__ import annotations

import subprocess
import sys

import _agents_install
import httpx
import pytest
from _agents_hands import HANDS
from _agents_hop import Asked, Hop
from _agents_install import InstallError, check_node, install
from _agents_judge import Row as Judged
from _agents_judge import table
from _agents_plans import UNPLANNED, Once, Script, Tool, policy
from _agents_scenarios import SCENARIOS, Expected, scenario
from dressage_blackbox_server import known_agents
from dressage_proxy.engine.scripted import ScriptedEngine
from dressage_proxy.engine.scripted_http import serving
from dressage_proxy.replay.traffic import Row
from dressage_tito import ChatCodec, message_from_json
from dressage_tito.toy import write_toy_tokenizer
from workspace import ROOT

TOOLS = [{"type": "function", "function": {"name": "shell", "parameters": {"type": "object"}}}]
CALL = Tool("shell", {"command": "ls @id@"})
PLANS = {"one": ["first", ["second", CALL], "last"], "part": ["a part"]}


@pytest.fixture(scope="module")
def codec(tmp_path_factory):
    return ChatCodec.from_folder(write_toy_tokenizer(tmp_path_factory.mktemp("toy")))


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


def prompted(codec, messages, tools=TOOLS):
    """What the engine is asked after these messages."""
    return list(map(int, codec.start([message_from_json(message) for message in messages], tools).ids))


def spoken(reply):
    return reply.rpartition("</think>")[2].strip()


@pytest.mark.parametrize(
    ("messages", "reply"),
    [
        ([user("go @@one@@")], "first"),
        ([user("go @@one@@"), said("x"), user("on")], f"second\n{CALL.text().replace('@id@', '')}"),
        ([user("go @@one@@"), said("x"), user("on"), said("y"), user("on")], "last"),
        ([user("go @@one@@"), *[said("x"), user("on")] * 9], "last"),
        ([user("go @@one@@"), said("x"), user("go @@part@@")], "a part"),
        ([user("go @@other@@")], UNPLANNED),
        ([user("go @@one@@"), said("x"), user("Write a detailed summary")], "What was done so far was"),
        ([user("a detailed summary is wanted: @@one@@")], "first"),
    ],
)
def test_a_prompt_is_answered_by_the_next_step_of_the_last_plan_that_it_names(codec, messages, reply):
    prompt = codec.decode(prompted(codec, messages))
    assert spoken(Script(PLANS).reply(prompt)).startswith(reply)


def test_a_prompt_without_tools_gets_the_summary_whose_plan_comes_before_the_first_one(codec):
    script = Script({**PLANS, "after": Once("a", "b")}, summary="It was done. @@after@@")
    assert spoken(script.reply(codec.decode(prompted(codec, [user("x")], None)))) == script.summary
    kept = [said(script.summary), user("go on @@one@@"), *[said("x"), user("on")] * 3]
    assert spoken(script.reply(codec.decode(prompted(codec, kept)))) == "a"
    assert spoken(script.reply(codec.decode(prompted(codec, [*kept, said("a"), user("on")])))) == "b"


def test_an_id_of_a_result_is_used_in_the_next_call(codec):
    result = {"role": "tool", "content": '{"agent_id": "a-7"}', "tool_call_id": "c"}
    call = {"id": "c", "type": "function", "function": {"name": "shell", "arguments": "{}"}}
    messages = [user("@@one@@"), {**said(""), "tool_calls": [call]}, result]
    assert "ls a-7" in Script(PLANS).reply(codec.decode(prompted(codec, messages)))


def test_what_is_sampled_are_not_the_ids_that_the_tokenizer_gives(codec):
    prompt = prompted(codec, [user("go @@one@@")])
    ids = policy(codec, Script(PLANS))(prompt, {"stop_token_ids": [7]}, 0)
    assert ids[-1] == 7
    text = codec.decode(ids[:-1])
    assert spoken(text) == "first"
    assert list(codec.encode_sample(text)) != ids[:-1]


@pytest.mark.parametrize("version", ["v20.0.0", "v26.1.2"])
def test_a_node_of_today_is_taken(version):
    check_node(version)


@pytest.mark.parametrize("version", ["v18.20.0", "", "nonsense"])
def test_a_node_that_is_too_old_is_refused_with_what_is_needed(version):
    with pytest.raises(InstallError, match="install 20 or later"):
        check_node(version)


def test_a_folder_that_cannot_be_made_is_told_as_what_does_not_install(tmp_path, monkeypatch):
    (tmp_path / "npm").write_text("#!/bin/sh\necho v26.0.0\n")
    (tmp_path / "npm").chmod(0o755)
    (tmp_path / "node").symlink_to("npm")
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(_agents_install, "FOLDER", tmp_path / "taken")
    with pytest.raises(InstallError, match=r"node@26 does not install: .*taken"):
        install(known_agents()["codex"])


@pytest.mark.parametrize("agent", HANDS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_of_every_agent_can_be_put_together(agent, name):
    assert agent in known_agents()
    assert set(HANDS[agent].differs) <= set(SCENARIOS)
    wanted = scenario(agent, name)
    if wanted is not None:
        assert isinstance(wanted.expected, Expected)
        assert len(wanted.expected.outcomes) == len(wanted.job.prompts)
        assert "@@one@@" in wanted.job.prompts[0]


@pytest.mark.parametrize(("cut", "events"), [(None, 4), (2, 2), (-1, 3), (0, 0)])
async def test_the_hop_hands_on_what_is_asked_notes_it_and_cuts_streams_where_told(cut, events):
    whole = [f"data: {number}\n\n" for number in range(4)]
    asked = []

    async def app(scope, receive, send):
        asked.append((scope["path"], (await receive())["body"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": "".join(whole).encode()})

    async with serving(app, 0) as url, httpx.AsyncClient(base_url=url, trust_env=False) as up:
        hop = Hop(ScriptedEngine(), up)
        hop.begin("codex", "r", {} if cut is None else {0: cut})
        async with serving(hop, 0) as address, httpx.AsyncClient(base_url=address, trust_env=False) as http:
            got = ""
            try:
                async with http.stream("POST", "/s/abc/v1/responses", json={"input": "q"}) as reply:
                    async for text in reply.aiter_text():
                        got += text
            except httpx.HTTPError:
                assert cut is not None
    assert got == "".join(whole[:events])
    assert asked == [("/s/abc/v1/responses", b'{"input":"q"}')]
    (row,) = [one.told() for one in hop.settle()]
    assert (row.path, dict(row.body), row.answer) == (
        "/v1/responses",
        {"input": "q"},
        "!cut" if cut is not None else "",
    )


def test_what_a_broken_stream_left_of_an_answer_is_not_in_the_row_that_is_judged():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    kept = [user("q"), {**said(""), "tool_calls": [call]}, said(""), user("on"), said("x")]
    body = {"messages": [*kept[:4], {**said(""), "reasoning_content": "t"}, kept[4]]}
    asked = Asked(Row("opencode", "r", "POST", "/v1/chat/completions", "", {}, body, ""))
    assert asked.told().body == {"messages": kept}


def test_a_row_without_a_session_and_one_with_problems_are_told_in_the_table():
    text = table([Judged("codex", "plain", 1.2), Judged("codex", "tool", 3.0, problems=("it broke",))])
    lines = text.splitlines()
    assert lines[1].split()[:2] == ["codex", "plain"]
    assert lines[1].endswith("ok")
    assert lines[2].endswith("PROBLEM")
    assert lines[3].strip() == "PROBLEM: it broke"


def test_an_unknown_agent_is_refused_with_the_known_ones():
    command = [sys.executable, "scripts/agents.py", "nobody"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "unknown agent 'nobody': choose from claude_code, codex" in done.stderr
