"""Conversations shaped like the agents' traffic through the real proxy, and a replay that sees faults."""

import gzip
import json
from dataclasses import asdict, replace

import pytest
from dressage_proxy import composing, echoes, planning, recents
from dressage_proxy.replay import __main__ as command
from dressage_proxy.replay.synthetic import synthetic_rows
from dressage_proxy.replay.table import table
from dressage_proxy.replay.traffic import TrafficError, read_traffic, runs_from_rows
from dressage_tito import Refusal
from dressage_tito.following import Following
from dressage_tito.toy import TEMPLATE, write_toy_tokenizer

pytestmark = pytest.mark.heavy


def some(*names):
    return [run for run in runs_from_rows(synthetic_rows()) if run.name in names]


async def test_every_sequence_keeps_its_main_branch_and_its_sampled_ids(tmp_path, toy_folder):
    runs = runs_from_rows(synthetic_rows())
    findings = await command.replay(runs, tmp_path, toy_folder)
    shown = table(findings)
    assert [finding.problems for finding in findings if finding.problems] == [], shown
    assert sum(finding.retokenised for finding in findings) == 0
    rewritten = ("forks", "codex_compacts", "opencode_compacts", "openclaw_adds_what_goes")
    rewritten += ("keeps_a_row", "qwen_compacts", "copilot_delegates")
    for finding in findings:
        assert finding.sampled == finding.trained + sum(finding.lost.values())
        if finding.run not in rewritten:
            assert finding.main == 1, (finding, "its history is append-only")
    kinds = {finding.run: " ".join(finding.branches) for finding in findings}
    assert "compaction" in kinds["codex_compacts"]
    assert "subagent" in kinds["subagent"]
    assert kinds["copilot_delegates"].count("subagent") == 2
    assert kinds["qwen_forks"].count("subagent") == 2
    assert "subagent" not in kinds["qwen_compacts"]
    assert [finding.main for finding in findings if finding.run == rewritten[-1]] == [2]
    losses = {finding.run: set(finding.lost) for finding in findings}
    assert losses["opencode_titles"] == losses["claude_suggests"] == {"helper_call"}
    assert losses["claude_is_cut"] == losses["codex_is_cut"] == {"undelivered"}


async def test_an_echo_that_is_tokenised_again_is_seen(tmp_path, toy_folder, monkeypatch):
    def as_text(codec, pieces, *rest):
        return composing.compose(codec, [composing.Piece(p.message, None, None) for p in pieces], *rest)

    monkeypatch.setattr(planning, "compose", as_text)
    findings = await command.replay(some("openclaw_adds_what_goes"), tmp_path, toy_folder)
    assert findings[0].retokenised > 0
    assert "not their sampled ids" in findings[0].problems[-1]


async def test_a_turn_of_a_row_that_is_written_as_text_is_seen(tmp_path, toy_folder, monkeypatch):
    monkeypatch.setattr(Following, "tail", lambda *_, **__: Refusal("turns_in_a_row", "none is taken"))
    runs = some("goes_on", "keeps_a_row")
    findings = await command.replay(runs, tmp_path, toy_folder)
    assert len(findings) == 4
    for finding in findings:
        assert finding.retokenised > 0
        assert any("not their sampled ids" in problem for problem in finding.problems)
        assert any("unexplained branch" in problem for problem in finding.problems)


async def test_a_branch_without_a_reason_is_seen(tmp_path, toy_folder, monkeypatch):
    monkeypatch.setattr(recents, "pin_volatile", lambda pinned, raw: list(raw))
    (claude,) = [run for run in some("bad_calls") if run.agent == "claude"]
    (finding,) = await command.replay([claude], tmp_path, toy_folder)
    assert any("unexplained branch" in problem for problem in finding.problems)


async def test_a_cut_reply_that_is_taken_for_whole_is_no_loss_and_no_copy_of_what_was_not_seen(
    tmp_path, toy_folder, monkeypatch
):
    monkeypatch.setattr(echoes, "_kept", lambda *_: None)
    (finding,) = await command.replay(some("claude_is_cut"), tmp_path, toy_folder)
    assert finding.lost == {}, "without the rule the turn would be trained as if all of it had arrived"


def test_an_answer_with_calls_is_to_a_request_that_offered_tools():
    (run,) = some("qwen_compacts")
    body = run.rows[0].body
    function = {"name": "shell", "arguments": "{}"}
    made = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
    asked = [*body["messages"], {"role": "user", "content": "shorten it"}]
    bodies = [{**body, "messages": asked, "tools": []}, {**body, "messages": [*asked, made]}]
    (again,) = runs_from_rows([run.rows[0], *(replace(run.rows[0], body=other) for other in bodies)])
    assert [call.echo is not None for call in again.calls] == [True, False, False]


def test_an_answer_of_a_history_whose_beginning_changed_is_to_the_request_that_ends_as_it_does():
    (run,) = some("qwen_compacts")
    body = run.rows[0].body
    user = [{"role": "user", "content": text} for text in ("go", "on", "first, it is noon: go")]
    said = [{"role": "assistant", "content": text} for text in ("yes", "done")]
    asked = [[user[0]], [user[0]], [user[0], said[0], user[1]], [user[2], said[0], user[1], said[1], user[1]]]
    (again,) = runs_from_rows([replace(run.rows[0], body={**body, "messages": raw}) for raw in asked])
    told = [call.echo["content"] if call.echo else "" for call in again.calls]
    assert told == ["", "yes", "done", ""]


def test_traffic_is_read_from_plain_and_packed_files_and_resumed_runs_are_one(tmp_path):
    rows = [asdict(row) for row in synthetic_rows() if row.run.startswith("two_runs")]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "a.jsonl").write_text(lines)
    plain = read_traffic(tmp_path)
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    assert read_traffic(tmp_path) == plain
    runs = runs_from_rows(plain)
    assert sorted((run.agent, len(run.rows)) for run in runs) == [
        ("claude", 6), ("codex", 6), ("openclaw", 6), ("opencode", 6)
    ]  # fmt: skip


async def test_probes_and_telemetry_are_part_of_a_run_and_a_base_url_is_none_of_its_path(
    tmp_path, toy_folder
):
    rows = [asdict(row) for row in synthetic_rows() if row.run == "claude_is_cut"]
    side = [("HEAD", "/api/hello"), ("GET", "/v1/models"), ("POST", "/api/event_logging/batch")]
    rows[1:1] = [{**rows[0], "method": method, "path": path, "body": {}} for method, path in side]
    rows.append({**rows[0], "path": "/v1/messages/count_tokens", "query": "beta=true"})
    for row in rows:
        row["path"] = "/s/recorded" + row["path"] if row["path"].startswith("/v1/") else row["path"]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "a.jsonl").write_text(lines)
    (finding,) = await command.replay(runs_from_rows(read_traffic(tmp_path)), tmp_path, toy_folder)
    assert finding.problems == ()
    assert (finding.requests, finding.main) == (len(rows), 1)


@pytest.mark.parametrize("content", [None, "{", '{"run": "r"}', "[]"])
def test_traffic_that_does_not_read_is_named(tmp_path, content, capsys):
    if content is not None:
        (tmp_path / "bad.jsonl").write_text(content)
    with pytest.raises(TrafficError, match=r"bad\.jsonl:1|holds no"):
        read_traffic(tmp_path)
    assert command.main([str(tmp_path)]) == 2
    assert str(tmp_path.name) in capsys.readouterr().err or content is not None


def test_the_command_prints_a_row_a_run_and_exits_0(capsys):
    assert command.main(["--run", "codex_patches"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split()[:6] == ["agent", "run", "requests", "main", "segments", "re-tokenised"]
    assert shown[1].split()[:6] == ["codex", "codex_patches", "3", "1", "1", "0"]
    assert command.main(["--run", "no such run"]) == 1


HERMES = """\
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
"""
TAGGED = """\
            {{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}
            {%- for name, value in call.function.arguments.items() %}
                {{- '<parameter=' + name + '>\\n' }}
                {{- (value if value is string else value | tojson) + '\\n</parameter>\\n' }}
            {%- endfor %}
            {{- '</function>\\n</tool_call>' }}
"""


async def test_calls_are_sampled_in_the_grammar_of_the_tokenizer_that_is_given(tmp_path):
    assert HERMES in TEMPLATE
    folder = write_toy_tokenizer(tmp_path / "tagged", template=TEMPLATE.replace(HERMES, TAGGED))
    names = ("bad_calls", "codex_patches", "claude_is_cut", "codex_is_cut")
    findings = await command.replay(some(*names), tmp_path, folder)
    assert len(findings) > 3
    assert [finding.problems for finding in findings if finding.problems] == [], table(findings)


async def test_an_answer_that_the_template_does_not_write_is_named(tmp_path):
    each = "{%- for call in message.tool_calls or [] %}"
    picky = "{%- if call.function.name == 'apply_patch' %}{{ raise_exception('no patches') }}{%- endif %}"
    assert each in TEMPLATE
    folder = write_toy_tokenizer(tmp_path / "picky", template=TEMPLATE.replace(each, each + picky))
    (finding,) = await command.replay(some("codex_patches"), tmp_path, folder)
    assert any("cannot be written" in problem for problem in finding.problems)


def test_a_tokenizer_that_takes_no_tools_is_refused_by_name(tmp_path, capsys):
    said = "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    bare = "{%- for message in messages %}" + said + "{%- endfor %}"
    prompt = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
    folder = write_toy_tokenizer(tmp_path / "bare", template=bare + prompt)
    assert command.main(["--run", "codex_patches", "--tokenizer", str(folder)]) == 2
    assert "takes no tools" in capsys.readouterr().err
