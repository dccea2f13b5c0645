"""Routed experts: kept by the turn that added them, stitched over a walk, and proven by the audit."""

import dataclasses

import numpy as np
import pytest
from dressage_segments import (
    Final,
    InvalidFieldError,
    audit,
    final_to_record,
    finalize,
    record_from_bytes,
    record_to_bytes,
    segment_from_bytes,
    segment_to_bytes,
    tree_from_records,
)
from dressage_segments.errors import ContextMismatchError
from dressage_segments.synthetic import SyntheticSession
from dressage_segments.vocabulary import FailureClass
from hypothesis import given
from hypothesis import strategies as st

LAYERS, TOPK = 3, 2


def rows(start, end, salt=0):
    """What the router chose at positions start … end - 1: a function of the position and of ``salt``."""
    grid = np.arange(start, end)[:, None, None] + salt + np.arange(LAYERS)[:, None] + np.arange(TOPK)
    return (grid % 251).astype(np.uint8)


def grow(session, parent, covered, delta, output, salt=0):
    """A turn with the rows from ``covered`` to its last token but one; its index and what is covered then."""
    before = 0 if parent < 0 else session.tree.end(parent)
    end = before + delta + output - 1
    keys = [f"k{len(session.tree)}"]
    made = rows(covered, end, salt)
    index = session.turn(
        np.arange(delta), np.arange(output), parent=parent, keys=keys, experts=made, experts_start=covered
    )
    return index, end


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=8))
def test_every_segment_has_the_row_of_every_position_but_the_last(shape):
    session = SyntheticSession()
    ends = {-1: 0}
    for back, delta, output in shape:
        parent = max(-1, len(session.tree) - 1 - back)
        child = len(session.tree)
        _, ends[child] = grow(session, parent, ends[parent], delta, output)
    final = Final(1, FailureClass.COMPLETED, {})
    log = [record_from_bytes(record_to_bytes(record)) for record in session.log]
    trajectory = finalize(tree_from_records(log), final)
    for segment in trajectory.segments:
        assert segment.experts_rows.tolist() == list(range(len(segment) - 1))
        assert np.array_equal(segment.experts, rows(0, len(segment) - 1))
        again = segment_from_bytes(segment_to_bytes(segment))
        assert np.array_equal(again.experts, segment.experts)
    assert audit([*log, final_to_record(final)], trajectory).ok
    first = dataclasses.replace(trajectory.segments[0], experts=trajectory.segments[0].experts + 1)
    forged = dataclasses.replace(trajectory, segments=(first, *trajectory.segments[1:]))
    assert any(
        "experts" in finding.message for finding in audit([*log, final_to_record(final)], forged).findings
    )


def test_siblings_keep_their_own_rows():
    session = SyntheticSession()
    root, covered = grow(session, -1, 0, 4, 3)
    left, _ = grow(session, root, covered, 2, 2, salt=10)
    right, _ = grow(session, root, covered, 2, 2, salt=20)
    assert left != right
    segments = finalize(session.tree, Final(1, FailureClass.COMPLETED, {})).segments
    assert [int(segment.experts[covered, 0, 0]) for segment in segments] == [covered + 10, covered + 20]


def test_a_gap_between_turns_is_refused():
    session = SyntheticSession()
    root, covered = grow(session, -1, 0, 4, 3)
    grow(session, root, covered + 1, 2, 2)
    with pytest.raises(ContextMismatchError, match="experts from position 7"):
        finalize(session.tree, Final(1, FailureClass.COMPLETED, {}))


@pytest.mark.parametrize("shape", [(2, LAYERS + 1, TOPK), (2, LAYERS, TOPK - 1), (9, LAYERS, TOPK)])
def test_rows_of_another_model_or_beyond_the_tokens_are_refused_and_the_audit_says_so(shape):
    session = SyntheticSession()
    root, covered = grow(session, -1, 0, 4, 3)
    good = finalize(session.tree, Final(1, FailureClass.COMPLETED, {}))
    experts = np.zeros(shape, np.uint8)
    session.turn([1], [2, 3], parent=root, keys=["k"], experts=experts, experts_start=covered)
    final = Final(1, FailureClass.COMPLETED, {})
    with pytest.raises(ContextMismatchError, match="turn 1 has experts"):
        finalize(session.tree, final)
    report = audit([*session.log, final_to_record(final)], good)
    assert any("turn 1 has experts" in finding.message for finding in report.findings)


def test_dropped_experts_are_in_the_log_still():
    session = SyntheticSession()
    grow(session, -1, 0, 4, 3)
    session.tree.drop_experts()
    assert session.tree.turn(0).experts is None
    assert tree_from_records(session.log).turn(0).experts.shape == (6, LAYERS, TOPK)


@pytest.mark.parametrize("bad", [np.zeros((2, 3), np.uint8), np.zeros((2, 3, 2), np.int32), [1]])
def test_experts_of_another_shape_or_type_are_refused(bad):
    session = SyntheticSession()
    with pytest.raises(InvalidFieldError, match="experts"):
        session.turn([1], [2], experts=bad)


@pytest.mark.parametrize("order", [[0, 0], [1, 0]])
def test_rows_out_of_order_are_refused(order):
    session = SyntheticSession()
    session.turn([1], [2, 3], experts=rows(0, 2))
    (segment,) = finalize(session.tree, Final(1, FailureClass.COMPLETED, {})).segments
    with pytest.raises(InvalidFieldError, match="experts_rows"):
        dataclasses.replace(segment, experts_rows=np.array(order, np.int32)).validate()
