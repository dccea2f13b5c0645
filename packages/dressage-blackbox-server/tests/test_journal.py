"""The journal: what survives a crash, and what a restart makes of it."""

from __future__ import annotations

import pytest
from dressage_blackbox_server import (
    FileJournal,
    JournalError,
    JournalRecord,
    SessionState,
    TurnOutcome,
    TurnRecord,
    TurnState,
    restored_turns,
)
from hypothesis import given
from hypothesis import strategies as st


def record(state: TurnState = TurnState.COMMITTED, turn_id: str = "t1") -> TurnRecord:
    return TurnRecord(turn_id=turn_id, index=0, prompt_digest="d", state=state)


def test_what_was_appended_is_loaded_in_order_and_forgotten_on_request(tmp_path, config):
    journal = FileJournal(tmp_path / "j")
    records = [
        JournalRecord(config=config),
        JournalRecord(turn=record(TurnState.QUEUED)),
        JournalRecord(turn=record()),
    ]
    for one in records:
        journal.append("s1", one)
    assert FileJournal(tmp_path / "j").load() == {"s1": records}
    journal.forget("s1")
    journal.forget("s1")
    assert journal.load() == {}


def test_a_tail_torn_anywhere_loses_only_the_last_record_and_swallows_none_after(tmp_path, config):
    journal = FileJournal(tmp_path)
    journal.append("s1", JournalRecord(config=config))
    before = (tmp_path / "s1.jsonl").read_bytes()
    said = record().model_copy(update={"output": "é {}", "detail": '{"a": 1}'})
    journal.append("s1", JournalRecord(turn=said))
    whole = (tmp_path / "s1.jsonl").read_bytes()
    for cut in range(len(before), len(whole) - 1):
        (tmp_path / "s1.jsonl").write_bytes(whole[:cut])
        assert journal.load()["s1"] == [JournalRecord(config=config)]
        journal.append("s1", JournalRecord(turn=record(turn_id="t2")))
        assert [r.turn.turn_id for r in journal.load()["s1"][1:] if r.turn] == ["t2"]


def test_a_line_of_another_version_is_refused_by_name(tmp_path):
    (tmp_path / "s1.jsonl").write_text('{"shape": "of tomorrow"}\n')
    with pytest.raises(JournalError, match=r"s1\.jsonl, line 1"):
        FileJournal(tmp_path).load()


@pytest.mark.parametrize("name", ["../up", "", "a/b", ".hidden"])
def test_a_session_id_that_could_leave_the_folder_is_refused(tmp_path, name):
    with pytest.raises(JournalError, match="cannot name a file"):
        FileJournal(tmp_path).append(name, JournalRecord(turn=record()))


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot be made"):
        FileJournal(tmp_path / "file" / "j")


async def test_a_journal_that_cannot_be_written_accepts_no_turn(open_session, executor, tmp_path):
    class Full(FileJournal):
        def append(self, session_id, record):
            raise JournalError("disk full")

    session = open_session(journal=Full(tmp_path))
    with pytest.raises(JournalError):
        session.submit("t1", "one")
    assert session.state is SessionState.READY
    assert executor.runs == []


async def test_a_result_that_could_not_be_journalled_is_an_infrastructure_failure(open_session, tmp_path):
    class FullAtTheEnd(FileJournal):
        def append(self, session_id, record):
            if record.turn is not None and record.turn.state.final:
                raise JournalError("disk full")
            super().append(session_id, record)

    turn = await open_session(journal=FullAtTheEnd(tmp_path)).turn("t1", "one")
    assert (turn.state, turn.outcome) == (TurnState.FAILED, TurnOutcome.INFRASTRUCTURE)
    assert "disk full" in turn.detail


ORDER = (TurnState.QUEUED, TurnState.INFLIGHT, TurnState.COMMITTED)


@given(st.lists(st.integers(0, 2), max_size=6))
def test_after_a_restart_no_turn_is_active_and_only_a_finished_one_has_a_result(depths):
    log = [record(s, f"t{i}") for i, depth in enumerate(depths) for s in ORDER[: depth + 1]]
    restored = restored_turns(log)
    assert [t.turn_id for t in restored] == [f"t{i}" for i in range(len(depths))]
    expected = {0: TurnState.CANCELLED, 1: TurnState.UNKNOWN, 2: TurnState.COMMITTED}
    assert [t.state for t in restored] == [expected[d] for d in depths]
