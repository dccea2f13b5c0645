import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from dressage_recipes.audit import audit_run, describe
from dressage_recipes.cli import main
from dressage_recipes.errors import NotARunError
from dressage_segments import EngineCall, FailureClass, Final, final_to_record, finalize
from dressage_segments.synthetic import SyntheticSession
from dressage_store import FilesStore


def write_session(store, name, *, reward=1.0, finish=True, spoil=None):
    """Two turns of three tokens each; ``spoil`` changes the trajectory before it is put."""
    session = SyntheticSession(name)
    first = session.turn([1, 2, 3], [10, 11, 12], keys=["q"])
    session.turn([4, 5], [20, 21, 22], parent=first, keys=["q", "a"])
    final = Final(1, FailureClass.COMPLETED, {"reward": reward})
    log = [*session.log, final_to_record(final)] if finish else session.log
    for record in log:
        store.append(name, record)
    if finish:
        trajectory = finalize(session.tree, final)
        store.put(spoil(trajectory) if spoil else trajectory)


@pytest.fixture
def run(tmp_path: Path):
    """A run's folder with a store that retains, open for writing; closed before the audit reads it."""
    store = FilesStore(tmp_path / "store", retain=True)
    yield tmp_path, store
    store.close()


def shifted(trajectory):
    segment = trajectory.segments[0]
    ids = segment.token_ids.copy()
    ids[0] += 1
    changed = dataclasses.replace(segment, token_ids=ids)
    return dataclasses.replace(trajectory, segments=(changed, *trajectory.segments[1:]))


def test_a_sound_run_holds_and_every_trained_token_is_proven(run, capsys):
    folder, store = run
    for name in ("a", "b"):
        write_session(store, name)
    store.ack("a", store.inspect("a").generation)
    assert main(["audit", str(folder), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ok"]
    assert said["sessions"] == 2
    assert said["sampled_tokens"] == said["trained_tokens"] == said["proven_tokens"] == 12
    assert said["fraction_proven"] == said["fraction_trainable"] == 1.0
    assert said["promises"] == {"P1": True, "P2": True, "P3": True, "P4": True, "P5": True}


def test_a_prompt_that_the_engine_never_saw_is_a_doubt_and_exit_1(run, capsys):
    folder, store = run
    write_session(store, "a")
    write_session(store, "b", spoil=shifted)
    assert main(["audit", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "DOUBT P1 b" in out
    assert "DOES NOT HOLD" in out.splitlines()[-1]
    assert audit_run(folder).proven_tokens < audit_run(folder).trained_tokens


def test_an_unfinished_session_is_a_doubt_only_when_the_run_is_over(run):
    folder, store = run
    write_session(store, "a")
    write_session(store, "open", finish=False)
    assert audit_run(folder).ok
    assert audit_run(folder).unfinished == 1
    assert audit_run(folder).unfinished_tokens == audit_run(folder).trained_tokens == 6
    assert "1 unfinished: 6 tokens, none trained" in describe(audit_run(folder))[0]
    (folder / "summary.json").write_text("{}")
    doubts = audit_run(folder).doubts
    assert [(doubt.session_id, doubt.promise) for doubt in doubts] == [("open", "P2")]


@pytest.mark.parametrize(
    ("summary", "holds"),
    [
        ('{"trained_tokens": 6}', True),
        ('{"trained_tokens": 7}', False),
        ("[]", False),
        ("{", False),
        ("[" * 100_000, False),
    ],
    ids=["the same count", "another count", "no object", "no JSON", "too deep"],
)
def test_a_summary_that_the_store_does_not_bear_out_is_a_doubt(run, summary, holds):
    folder, store = run
    write_session(store, "a")
    (folder / "summary.json").write_text(summary)
    result = audit_run(folder)
    assert result.ok is holds
    assert [doubt.promise for doubt in result.doubts] == ([] if holds else ["P2"])


def test_a_summary_that_is_no_regular_file_is_a_doubt_and_not_waited_for(run):
    folder, store = run
    write_session(store, "a")
    os.mkfifo(folder / "summary.json")
    command = [sys.executable, "-m", "dressage_recipes.cli", "audit", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "summary.json cannot be read: it is no regular file" in done.stdout


def test_a_deleted_session_is_lost_under_its_cause(run):
    folder, store = run
    write_session(store, "a")
    write_session(store, "gone", finish=False)
    store.forget("gone")
    result = audit_run(folder)
    assert result.ok
    assert result.lost_tokens == {"deleted": 6}
    assert result.sampled_tokens == result.trained_tokens + 6


def test_a_trajectory_that_was_not_kept_cannot_be_proven(tmp_path):
    with FilesStore(tmp_path / "store", retain=False) as store:
        write_session(store, "a")
        store.ack("a", store.inspect("a").generation)
    result = audit_run(tmp_path)
    assert not result.ok
    assert "cannot be read" in result.doubts[0].message


def test_an_empty_store_proves_nothing(run):
    folder, _store = run
    assert not audit_run(folder).ok


def test_the_audit_changes_no_file_of_the_run(run):
    folder, store = run
    write_session(store, "a")
    store.close()
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    audit_run(folder)
    assert {path: path.read_bytes() for path in before} == before


def test_a_run_is_audited_while_it_is_written(run):
    folder, store = run
    write_session(store, "a")
    assert audit_run(folder).ok
    write_session(store, "b")
    assert audit_run(folder).sessions == 2


def test_the_stores_of_a_proxy_with_shards_are_one_run(tmp_path, capsys):
    root = tmp_path / "store"
    root.mkdir()
    (root / "shards").write_text("3\n")
    for shard, names in enumerate((("a", "b"), ("c",), ())):
        with FilesStore(root / f"shard-{shard}", retain=True) as store:
            for name in names:
                write_session(store, name, finish=name != "b")
    for folder in (tmp_path, root):
        result = audit_run(folder)
        assert result.ok, "a shard without a session is no doubt"
        assert (result.sessions, result.unfinished, result.trained_tokens) == (3, 1, 12)
    with FilesStore(root / "shard-1", retain=True) as store:
        write_session(store, "d", spoil=shifted)
    assert next(doubt.session_id for doubt in audit_run(tmp_path).doubts) == "d"
    (root / "shards").write_text("4\n")
    with pytest.raises(NotARunError, match="shard-3"):
        audit_run(tmp_path)
    assert main(["audit", str(root)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_session_that_two_shards_have_is_a_doubt(tmp_path):
    root = tmp_path / "store"
    root.mkdir()
    (root / "shards").write_text("2\n")
    for shard in range(2):
        with FilesStore(root / f"shard-{shard}", retain=True) as store:
            for name in ("a", f"own-{shard}"):
                write_session(store, name)
    (doubt,) = audit_run(tmp_path).doubts
    assert (doubt.session_id, doubt.promise) == ("a", "P2")
    assert "is one of session 'a' too" in doubt.message


def test_an_engine_call_that_two_sessions_have_is_a_doubt(run, monkeypatch):
    folder, store = run
    write_session(store, "a")
    said = EngineCall.__init__

    def of_a(self, *, call_id, **more):
        said(self, call_id=call_id.replace("b-", "a-"), **more)

    monkeypatch.setattr(EngineCall, "__init__", of_a)
    write_session(store, "b")
    (doubt,) = audit_run(folder).doubts
    assert (doubt.session_id, doubt.promise) == ("b", "P2")
    assert "call a-" in doubt.message


@pytest.mark.parametrize("kind", ["missing", "a file", "not a run"])
def test_a_folder_that_is_no_run_is_refused_in_one_line_with_exit_2(tmp_path, capsys, kind):
    folder = tmp_path / "x"
    if kind == "a file":
        folder.write_text("")
    elif kind == "not a run":
        folder.mkdir()
    with pytest.raises(NotARunError):
        audit_run(folder)
    assert main(["audit", str(folder)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert str(folder) in said
