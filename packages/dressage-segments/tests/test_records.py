import numpy as np
import pytest
from dressage_segments import (
    BufferFormatError,
    FailureClass,
    Final,
    InvalidFieldError,
    LogRecord,
    Mark,
    SegmentsError,
    SessionInfo,
    final_from_record,
    final_to_record,
    finalize,
    info_from_record,
    mark_from_record,
    mark_to_record,
    open_to_record,
    record_from_bytes,
    record_to_bytes,
    tree_from_records,
    turn_from_record,
    turn_to_record,
)
from dressage_segments.synthetic import SyntheticSession
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def through_bytes(record):
    return record_from_bytes(record_to_bytes(record))


def test_a_turns_record_can_carry_its_first_mark_and_a_later_mark_holds():
    session = SyntheticSession()
    session.turn([1], [2])
    turn = session.tree.turn(0)
    record = through_bytes(turn_to_record(turn, Mark.UNDELIVERED))
    assert turn_from_record(record).output_ids.tolist() == [2]
    log = [session.log[0], record]
    assert tree_from_records(log).marked(0) is Mark.UNDELIVERED
    assert tree_from_records([*log, mark_to_record(0, Mark.DELIVERED)]).marked(0) is Mark.DELIVERED
    assert tree_from_records([log[0], turn_to_record(turn)]).marked(0) is None
    broken = LogRecord("turn", {**record.meta, "mark": "lost"}, record.arrays)
    with pytest.raises(BufferFormatError, match="lost"):
        tree_from_records([log[0], broken])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10_000))
def test_a_tree_rebuilt_from_its_log_exports_the_same(random_trajectory, seed):
    session, _, log = random_trajectory(seed)
    again = tree_from_records(through_bytes(record) for record in log)
    assert again.info == session.tree.info
    assert len(again) == len(session.tree)
    for index in range(len(again)):
        assert again.ids(index).tolist() == session.tree.ids(index).tolist()
        assert again.marked(index) == session.tree.marked(index)


def test_every_field_of_a_turn_survives(episode):
    for turn in episode.tree.turns:
        again = turn_from_record(through_bytes(turn_to_record(turn)))
        for name in turn.__slots__:
            left, right = getattr(turn, name), getattr(again, name)
            assert np.array_equal(left, right) if isinstance(left, np.ndarray) else left == right


def test_open_mark_and_final_survive():
    info = SessionInfo("s", "i", "g", "r")
    assert info_from_record(through_bytes(open_to_record(info, {"limits": {"steps": 3}}))) == info
    assert mark_from_record(through_bytes(mark_to_record(4, Mark.UNDELIVERED))) == (4, Mark.UNDELIVERED)
    final = Final(2, FailureClass.TIMEOUT, {"reward": 0.5}, train_helpers=True)
    assert final_from_record(through_bytes(final_to_record(final))) == final


@pytest.mark.parametrize(
    ("read", "record"),
    [
        (info_from_record, LogRecord("open", {"session_id": "s"})),
        (info_from_record, LogRecord("turn", {})),
        (turn_from_record, LogRecord("turn", {})),
        (turn_from_record, LogRecord("open", {})),
        (mark_from_record, LogRecord("mark", {"turn": 0, "mark": "eaten"})),
        (mark_from_record, LogRecord("mark", {})),
        (final_from_record, LogRecord("final", {"generation": 1})),
        (final_from_record, LogRecord("final", {"generation": 1, "failure_class": "?", "outcome": {}})),
    ],
)
def test_incomplete_records_are_refused(read, record):
    with pytest.raises(BufferFormatError):
        read(record)


def test_a_turn_record_without_some_meta_or_array_is_refused(episode):
    record = turn_to_record(episode.tree.turn(0))
    for name in record.meta:
        less = {k: v for k, v in record.meta.items() if k != name}
        with pytest.raises(BufferFormatError):
            turn_from_record(LogRecord("turn", less, record.arrays))
    for name in record.arrays:
        fewer = {k: v for k, v in record.arrays.items() if k != name}
        with pytest.raises(BufferFormatError, match=name):
            turn_from_record(LogRecord("turn", record.meta, fewer))


OTHERS = (None, True, -1, 3, 2.5, "x", [], ["x"], [3], [None], {}, {"x": 1}, [{}], [{"x": 1}])


def others_of(meta):
    """``meta`` with one value, or one of a call's, replaced by one of another kind."""
    for name in meta:
        for other in OTHERS:
            yield {**meta, name: other}
    for name in (meta.get("calls") or [{}])[0]:
        for other in OTHERS:
            yield {**meta, "calls": [{**meta["calls"][0], name: other}]}


@pytest.mark.parametrize("kind", ["open", "turn", "mark", "final"])
def test_meta_of_another_kind_is_refused_or_taken_as_it_is_but_never_breaks_the_reader(kind):
    session = SyntheticSession()
    session.turn([1], [2], experts=np.zeros((2, 1, 1), np.uint8))
    record, read = {
        "open": (session.log[0], info_from_record),
        "turn": (turn_to_record(session.tree.turn(0), Mark.DELIVERED), tree_of),
        "mark": (mark_to_record(0, Mark.DELIVERED), mark_from_record),
        "final": (final_to_record(Final(1, FailureClass.COMPLETED, {})), ended_as),
    }[kind]
    refused = 0
    for meta in others_of(record.meta):
        try:
            read(LogRecord(kind, meta, record.arrays))
        except SegmentsError:
            refused += 1
    assert refused


def ended_as(record):
    session = SyntheticSession()
    session.turn([1], [2])
    return finalize(session.tree, final_from_record(record))


def tree_of(turn):
    tree = tree_from_records([SyntheticSession().log[0], turn])
    return finalize(tree, Final(1, FailureClass.COMPLETED, {}))


def test_meta_that_json_cannot_hold_is_refused_by_name():
    with pytest.raises(InvalidFieldError, match="open"):
        record_to_bytes(LogRecord("open", {"limit": float("inf")}))


def test_bytes_that_are_no_record_are_refused():
    with pytest.raises(BufferFormatError):
        record_from_bytes(b"junk")
    with pytest.raises(BufferFormatError, match="schema"):
        record_from_bytes(b"\x02\0\0\0\0\0\0\0{}")


def test_a_log_must_start_with_open(episode):
    with pytest.raises(BufferFormatError, match="open"):
        tree_from_records(episode.log[1:])
    with pytest.raises(BufferFormatError, match="empty"):
        tree_from_records([])
