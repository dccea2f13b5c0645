import dataclasses

import numpy as np
import pytest
from dressage_segments import (
    COLUMNS,
    BranchKind,
    FailureClass,
    LogRecord,
    LossCause,
    Mark,
    Origin,
    audit,
    mark_to_record,
    record_from_bytes,
    record_to_bytes,
    trajectory_from_bytes,
    trajectory_to_bytes,
)
from dressage_segments.synthetic import SyntheticSession
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ANY_FIXTURE = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def stored(episode, finished):
    """Trajectory and log of the episode, as they are read back from a store."""
    trajectory, log = finished(episode)
    return (
        trajectory_from_bytes(trajectory_to_bytes(trajectory)),
        [record_from_bytes(record_to_bytes(record)) for record in log],
    )


def promises(report):
    return {str(finding.promise) for finding in report.findings}


@ANY_FIXTURE
@given(st.integers(0, 10_000), st.sampled_from(list(FailureClass)), st.booleans())
def test_every_session_that_the_tree_exports_is_proven(random_trajectory, seed, failure, helpers):
    _, trajectory, log = random_trajectory(seed, failure_class=failure, train_helpers=helpers)
    report = audit(log, trajectory)
    unknown = [f for f in report.findings if "version is unknown" not in f.message]
    assert not unknown
    assert report.proven_tokens == report.trained_tokens == trajectory.trained_tokens


def other(column, array, at):
    """A different value that the column's own rules may well allow."""
    if column == "loss_mask":
        return 1 - array[at]
    if column == "origin":
        return Origin.BRIDGE if array[at] != Origin.BRIDGE else Origin.PROMPT
    if column == "logprobs":
        return array[at] - np.float32(1e-6)
    return array[at] + 1


@pytest.mark.parametrize("column", sorted(COLUMNS))
def test_changing_any_single_entry_of_any_column_is_found(stored, changed, column):
    trajectory, log = stored
    for number, segment in enumerate(trajectory.segments):
        for at in range(len(segment)):
            forged = changed(segment, column, at, other(column, getattr(segment, column), at))
            segments = tuple(forged if i == number else s for i, s in enumerate(trajectory.segments))
            report = audit(log, dataclasses.replace(trajectory, segments=segments))
            assert not report.ok, (number, at)


@pytest.mark.parametrize(
    ("column", "promise"), [("token_ids", "P1"), ("logprobs", "P3"), ("version", "P5"), ("offset", "P5")]
)
def test_a_forged_trained_token_is_found_without_the_tree_and_is_not_counted_as_proven(
    stored, changed, column, promise
):
    trajectory, log = stored
    segment = trajectory.segments[0]
    at = int(np.flatnonzero(segment.loss_mask)[0])
    forged = changed(segment, column, at, other(column, getattr(segment, column), at))
    report = audit(log[:-1], dataclasses.replace(trajectory, segments=(forged, *trajectory.segments[1:])))
    assert promise in promises(report)
    assert report.proven_tokens < report.trained_tokens


def test_a_changed_prompt_token_breaks_every_later_call_of_the_segment(stored, changed):
    trajectory, log = stored
    forged = changed(trajectory.segments[0], "token_ids", 0, 999)
    report = audit(log, dataclasses.replace(trajectory, segments=(forged, *trajectory.segments[1:])))
    blamed = {f.call_id for f in report.findings if f.segment_index == 0 and f.call_id}
    assert blamed == set(trajectory.segments[0].calls)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("session_id", "x"),
        ("instance_id", "x"),
        ("group_id", "x"),
        ("rollout_id", "x"),
        ("segment_index", 7),
        ("kind", BranchKind.SUBAGENT),
        ("calls", ("a", "b", "c", "d")),
        ("parent", 0),
        ("branch_offset", 1),
        ("cut_reason", "x"),
        ("tools_hash", "x"),
        ("sampling", {"temperature": 0.5}),
        ("finish_reason", "length"),
        ("failure_class", FailureClass.TRUNCATED),
    ],
)
def test_changing_any_field_of_a_segment_is_found(stored, field, value):
    trajectory, log = stored
    assert len(trajectory.segments) == 2
    for number in range(2):
        segment = trajectory.segments[number]
        if getattr(segment, field) == value:
            continue
        forged = dataclasses.replace(segment, **{field: value})
        segments = tuple(forged if i == number else s for i, s in enumerate(trajectory.segments))
        assert not audit(log, dataclasses.replace(trajectory, segments=segments)).ok


def test_two_anchors_or_none_are_found(stored):
    trajectory, log = stored
    for anchor in (True, False):
        segments = tuple(dataclasses.replace(s, anchor=anchor) for s in trajectory.segments)
        assert "P4" in promises(audit(log, dataclasses.replace(trajectory, segments=segments)))


@pytest.mark.parametrize(
    "change",
    [
        {"lost_tokens": {"retry": 3}, "sampled_tokens": 11},
        {"lost_tokens": {"helper_call": 2}},
        {"generation": 2},
        {"failure_class": FailureClass.POLICY_FAILURE},
        {"outcome": {"reward": 0.0}},
        {"segments": ()},
    ],
)
def test_changing_the_account_is_found(stored, change):
    trajectory, log = stored
    assert "P2" in promises(audit(log, dataclasses.replace(trajectory, **change)))


def test_a_segment_that_is_left_out_or_doubled_is_found(stored):
    trajectory, log = stored
    for segments in (trajectory.segments[:1], (*trajectory.segments, trajectory.segments[0])):
        assert "P2" in promises(audit(log, dataclasses.replace(trajectory, segments=segments)))


def test_a_token_trained_in_two_segments_is_found(stored, changed):
    trajectory, log = stored
    right = trajectory.segments[1]
    at = int(np.flatnonzero(right.sampled)[0])
    forged = changed(right, "loss_mask", at, 1)
    report = audit(log, dataclasses.replace(trajectory, segments=(trajectory.segments[0], forged)))
    assert any(f.message == "is trained in several segments" for f in report.findings)


def test_changing_any_single_entry_of_any_array_of_the_log_is_found(stored):
    trajectory, log = stored
    for number, record in enumerate(log):
        for name, array in record.arrays.items():
            for at in range(len(array)):
                forged = array.copy()
                if name == "delta_origin":
                    forged[at] = Origin.BRIDGE
                else:
                    forged[at] += 1 if name != "logprobs" else np.float32(-1e-3)
                again = LogRecord(record.kind, record.meta, {**record.arrays, name: forged})
                report = audit([*log[:number], again, *log[number + 1 :]], trajectory)
                turn_is_exported = record.meta["index"] not in (2, 5)
                if turn_is_exported or name == "delta_ids":
                    assert not report.ok, (number, name, at)


@pytest.mark.parametrize("number", range(8))
def test_a_log_without_one_of_its_records_is_found(stored, number):
    trajectory, log = stored
    assert len(log) == 8
    assert not audit([*log[:number], *log[number + 1 :]], trajectory).ok


@pytest.mark.parametrize("key", ["prompt_digest", "prompt_tokens", "output_tokens", "call_id", "untrainable"])
def test_changing_the_evidence_of_an_engine_call_is_found(stored, key):
    trajectory, log = stored
    forged = {
        "prompt_digest": "0" * 32,
        "prompt_tokens": 1,
        "output_tokens": 2,
        "call_id": "x",
        "untrainable": "length_cap",
    }
    record = log[2]
    calls = [dict(call) for call in record.meta["calls"]]
    calls[0][key] = forged[key]
    again = LogRecord("turn", {**record.meta, "calls": calls}, record.arrays)
    assert not audit([*log[:2], again, *log[3:]], trajectory).ok


def test_tokens_past_a_stop_string_are_sampled_and_lost_whatever_becomes_of_the_turn(finished):
    session = SyntheticSession()
    first = session.turn([1], [2, 3], cuts=[1], dropped=4)
    session.turn([5], [6], parent=first, dropped=2)
    session.turn([5], [7], parent=first)
    trajectory, log = finished(session)
    assert trajectory.sampled_tokens == session.tree.sampled_tokens == 4 + 6
    assert trajectory.lost_tokens == {LossCause.PAST_STOP: 6, LossCause.RETRY: 1}
    assert audit(log, trajectory).ok
    calls = [{**call, "dropped_tokens": 0} for call in log[1].meta["calls"]]
    forged = LogRecord("turn", {**log[1].meta, "calls": calls}, log[1].arrays)
    assert "P2" in promises(audit([log[0], forged, *log[2:]], trajectory))


def test_an_unknown_version_on_a_trained_token_is_a_doubt(finished):
    session = SyntheticSession()
    session.turn([1], [2, 3], versions=[4, -1])
    trajectory, log = finished(session)
    report = audit(log, trajectory)
    assert promises(report) == {"P5"}
    assert report.proven_tokens == 0


def test_a_rollout_of_a_class_that_does_not_train_may_not_train(finished):
    session = SyntheticSession()
    session.turn([1], [2])
    trajectory, log = finished(session)
    forged = dataclasses.replace(trajectory, failure_class=FailureClass.INFRASTRUCTURE)
    assert any("although the rollout is" in str(f) for f in audit(log, forged).findings)


def test_a_mark_after_the_end_changes_no_verdict_but_a_turn_after_it_is_unaccounted(stored):
    trajectory, log = stored
    assert audit([*log, mark_to_record(3, Mark.UNDELIVERED)], trajectory).ok
    late = SyntheticSession("ep")
    late.turn([1], [2, 3])
    meta = {**late.log[1].meta, "index": 6}
    meta["calls"] = [{**meta["calls"][0], "call_id": "late"}]
    report = audit([*log, LogRecord("turn", meta, late.log[1].arrays)], trajectory)
    assert promises(report) == {"P2"}


def test_damage_is_a_finding_never_a_crash(stored):
    trajectory, log = stored
    for broken in ([], [LogRecord("turn", {})], log[1:], log[:-1], [LogRecord("open", {}), *log[1:]]):
        assert not audit(broken, trajectory).ok


def test_a_finding_says_promise_place_and_problem(stored, changed):
    trajectory, log = stored
    at = int(np.flatnonzero(trajectory.segments[0].loss_mask)[0])
    forged = changed(trajectory.segments[0], "token_ids", at, 999)
    report = audit(log, dataclasses.replace(trajectory, segments=(forged, trajectory.segments[1])))
    text = str(report.findings[0])
    assert text.startswith(f"P1 segment 0 call {forged.calls[0]}: its tokens")
