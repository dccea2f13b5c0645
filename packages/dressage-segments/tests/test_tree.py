import dataclasses
import time
import tracemalloc

import numpy as np
import pytest
from dressage_segments import (
    ROOT,
    ContextMismatchError,
    FailureClass,
    Final,
    InvalidFieldError,
    Mark,
    Match,
    Origin,
    TrajectoryTree,
    TreeError,
    UnknownTurnError,
    finalize,
    ids_digest,
    info_from_record,
    mark_from_record,
    record_from_bytes,
    record_to_bytes,
    tree_from_records,
    turn_from_record,
)
from dressage_segments.synthetic import SyntheticSession, random_session
from hypothesis import given
from hypothesis import strategies as st


def test_a_request_attaches_to_the_longest_walk_that_it_extends():
    session = SyntheticSession()
    first = session.turn([1], [2], keys=["sys", "u1"], reply="a1")
    second = session.turn([3], [4], parent=first, keys=["t1"], reply="a2")
    match = session.tree.match
    assert match(["sys", "u1", "a1", "t1", "a2", "t2"], "tools") == Match(second, 5)
    assert match(["sys", "u1", "a1", "t1", "a2"], "tools") == Match(second, 5)
    assert match(["sys", "u1", "a1", "t1"], "tools") == Match(first, 3)
    assert match(["sys", "u1", "a1", "else", "a2"], "tools") == Match(first, 3)
    assert match(["sys", "u1"], "tools") is None
    assert match([], "tools") is None


def test_of_equal_replies_the_newest_that_is_not_lost_is_extended():
    session = SyntheticSession()
    old = session.turn([1], [2], keys=["u"], reply="same")
    new = session.turn([1], [2], keys=["u"], reply="same")
    assert session.tree.match(["u", "same", "x"], "tools") == Match(new, 2)
    session.mark(new, Mark.UNDELIVERED)
    assert session.tree.match(["u", "same", "x"], "tools") == Match(old, 2)
    session.mark(old, Mark.UNDELIVERED)
    assert session.tree.match(["u", "same", "x"], "tools") == Match(new, 2), "an echo proves delivery"


def test_a_superseded_turn_is_never_extended():
    session = SyntheticSession()
    session.mark(session.turn([1], [2], keys=["u"], reply="a"), Mark.SUPERSEDED)
    assert session.tree.match(["u", "a", "x"], "tools") is None


def test_the_reason_of_a_new_branch_is_named():
    session = SyntheticSession()
    assert session.tree.divergence(["u"], "tools") == ""
    session.turn([1], [2], keys=["sys", "u"], reply="a")
    assert session.tree.divergence(["sys", "u", "a", "t"], "others") == "tools_changed"
    assert session.tree.divergence(["sys", "v"], "tools") == "history_changed"
    assert session.tree.divergence(["sys2"], "tools") == "new_context"


def spelled(tree, index):
    keys = []
    for step in tree.walk(index):
        keys += [*tree.turn(step).input_keys, tree.turn(step).reply_key]
    return keys


@given(st.integers(0, 10_000))
def test_matching_agrees_with_comparing_every_walk(seed):
    rng = np.random.default_rng(seed)
    session = random_session(rng, 12)
    tree = session.tree
    keys = [*spelled(tree, int(rng.integers(12)))[: int(rng.integers(1, 9))], "new"]
    walks = {i: spelled(tree, i) for i in range(12)}
    fits = [
        i
        for i, walk in walks.items()
        if keys[: len(walk)] == walk
        and tree.turn(i).tools_hash == "tools"
        and tree.marked(i) is not Mark.SUPERSEDED
    ]
    match = tree.match(keys, "tools")
    if match is None:
        assert not fits
    else:
        assert match.matched == max(len(walks[i]) for i in fits) == len(walks[match.index])
        assert match.index in fits


@given(st.integers(0, 10_000))
def test_ids_and_digest_of_every_walk_are_its_pieces_in_order_whatever_was_asked_before(seed):
    rng = np.random.default_rng(seed)
    tree = random_session(rng, 15).tree
    for index in rng.integers(0, 15, 20).tolist():
        pieces = [
            piece for i in tree.walk(index) for piece in (tree.turn(i).delta_ids, tree.turn(i).output_ids)
        ]
        whole = np.concatenate(pieces)
        assert tree.ids(index).tolist() == whole.tolist()
        assert tree.end(index) == len(whole)
        assert tree.digest(index).hexdigest() == ids_digest(whole)
        assert tree.prompt_ids(index).tolist() == whole[: len(whole) - len(pieces[-1])].tolist()


def test_views_of_ids_do_not_change_when_branches_go_on():
    session = SyntheticSession()
    first = session.turn([1, 2], [3])
    view = session.tree.ids(first)
    session.turn([7], [8], parent=first)
    session.turn([9], [10], parent=first)
    assert view.tolist() == [1, 2, 3]
    assert session.tree.ids(first).tolist() == [1, 2, 3]


def test_a_call_that_was_not_sampled_after_its_walk_is_refused_and_the_tree_is_unharmed():
    session = SyntheticSession()
    first = session.turn([1, 2], [3], keys=["u"], reply="a")
    good = session.tree.turn(first)
    (call,) = good.calls
    for wrong in (
        dataclasses.replace(call, call_id="c", prompt_digest="0" * 32),
        dataclasses.replace(call, call_id="c", prompt_tokens=1),
    ):
        with pytest.raises(ContextMismatchError, match="call c"):
            session.tree.add(dataclasses.replace(good, index=1, calls=(wrong,)))
    assert session.tree.ids(first).tolist() == [1, 2, 3]
    second = session.turn([4], [5], parent=first)
    assert session.tree.ids(second).tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"session_id": "other"}, TreeError, "session_id"),
        ({"index": 5}, TreeError, "index"),
        ({}, TreeError, "call id"),
    ],
)
def test_turns_that_do_not_fit_are_refused(change, error, says):
    session = SyntheticSession()
    turn = session.tree.turn(session.turn([1], [2]))
    with pytest.raises(error, match=says):
        session.tree.add(dataclasses.replace(turn, **{"index": 1, **change}))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"parent": 0}, "parent"),
        ({"parent": -2}, "parent"),
        ({"logprobs": np.zeros(3, np.float32)}, "logprobs"),
        ({"versions": np.zeros(3, np.int32)}, "versions"),
        ({"delta_origin": np.zeros(3, np.uint8)}, "delta_origin"),
        ({"output_ids": np.zeros(1, np.int64)}, "output_ids"),
        ({"calls": ()}, "calls"),
        ({"finish_reason": "eos"}, "finish_reason"),
    ],
)
def test_turns_with_broken_columns_cannot_be_built(change, field):
    session = SyntheticSession()
    turn = session.tree.turn(session.turn([1], [2]))
    with pytest.raises(InvalidFieldError, match=field):
        dataclasses.replace(turn, **change)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"delta_ids": np.array([-1], np.int32)}, "delta_ids"),
        ({"output_ids": np.array([-1], np.int32)}, "output_ids"),
        ({"versions": np.array([-2], np.int32)}, "versions"),
        ({"delta_origin": np.array([4], np.uint8)}, "delta_origin"),
        ({"delta_origin": np.array([1], np.uint8)}, "delta_origin"),
    ],
)
def test_turns_with_values_out_of_range_are_refused(change, field):
    session = SyntheticSession()
    turn = session.tree.turn(session.turn([1], [2]))
    with pytest.raises(InvalidFieldError, match=field):
        dataclasses.replace(turn, **change).validate()


@given(st.lists(st.integers(0, 4) | st.integers(0, 255), min_size=1, max_size=8))
def test_every_origin_but_sampled_is_taken_and_the_first_unknown_one_is_named(origins):
    session = SyntheticSession()
    turn = session.tree.turn(session.turn(range(len(origins)), [2]))
    changed = dataclasses.replace(turn, delta_origin=np.array(origins, np.uint8))
    unknown = [at for at, origin in enumerate(origins) if origin > max(Origin)]
    if unknown or Origin.SAMPLED in origins:
        says = f"entry {unknown[0]} is {origins[unknown[0]]}," if unknown else "says sampled"
        with pytest.raises(InvalidFieldError, match=says):
            changed.validate()
    else:
        changed.validate()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"call_id": ""}, "call_id"),
        ({"prompt_tokens": -1}, "prompt_tokens"),
        ({"finish_reason": "eos"}, "finish_reason"),
        ({"untrainable": "because"}, "untrainable"),
    ],
)
def test_engine_calls_with_broken_fields_cannot_be_built(change, field):
    session = SyntheticSession()
    session.turn([1], [2])
    with pytest.raises(InvalidFieldError, match=field):
        dataclasses.replace(session.tree.turn(0).calls[0], **change)


def test_unknown_turns_are_named():
    tree = SyntheticSession().tree
    for ask in (tree.ids, tree.walk, tree.turn, tree.digest, tree.children):
        with pytest.raises(UnknownTurnError, match="turn 3"):
            ask(3)
    with pytest.raises(UnknownTurnError):
        tree.mark(0, Mark.DELIVERED)


def grow(session, turns, delta, output):
    parent = ROOT
    for number in range(turns):
        parent = session.turn(
            np.arange(delta),
            np.arange(output),
            parent=parent,
            keys=[f"message-{number}"],
            versions=[1] * output,
        )
    return parent


def test_a_64k_token_session_takes_at_most_3_mib():
    tracemalloc.start()
    try:
        session = SyntheticSession()
        session.log = []
        grow(session, 128, 256, 256)
        session.log.clear()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert session.tree.end(127) == 65_536
    assert held <= 3 * 2**20


def test_big_arrays_are_not_kept_alive_by_small_slices():
    session = SyntheticSession()
    big = np.zeros(100_000, np.int32)
    turn = session.turn(big[:2], [1])
    kept = session.tree.turn(turn).delta_ids
    assert kept.base is None or kept.base.nbytes < 1000


@given(st.integers(0, 10_000))
def test_what_is_lost_does_not_depend_on_when_it_was_asked(seed):
    log = random_session(np.random.default_rng(seed), 12).log
    tree = TrajectoryTree(info_from_record(log[0]))
    for count, record in enumerate(log[1:], 2):
        if record.kind == "turn":
            tree.add(turn_from_record(record))
        else:
            tree.mark(*mark_from_record(record))
        fresh = tree_from_records(log[:count])
        for index in range(len(tree)):
            assert tree.structural_loss(index) == fresh.structural_loss(index)


def test_identical_retries_are_matched_and_exported_in_linear_time():
    def seconds(count):
        session = SyntheticSession()
        for _ in range(count):
            session.turn([1, 2], [3], keys=["m"], reply="same")
        started = time.process_time()
        assert session.tree.match(["m", "same", "next"], "tools").index == count - 1
        assert finalize(session.tree, Final(1, FailureClass.COMPLETED, {})).lost_tokens == {
            "retry": count - 1
        }
        return time.process_time() - started

    few, many = (min(seconds(count) for _ in range(3)) for count in (150, 1200))
    assert many / few < 24, "8 times as many: quadratic time is 64 times as long"


def test_a_tree_read_from_its_log_does_not_keep_the_log_in_memory():
    session, routed = SyntheticSession(), np.zeros((300, 64, 8), np.uint8)
    session.turn(range(300), range(1, 2), experts=routed)
    data = [record_to_bytes(record) for record in session.log]
    tracemalloc.start()
    try:
        buffers = [bytes(bytearray(piece)) for piece in data]
        tree = tree_from_records(record_from_bytes(buffer) for buffer in buffers)
        del buffers
        tree.drop_experts()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(tree) == 1
    assert held < routed.nbytes / 2
