import numpy as np
import pytest
from dressage_segments import (
    BranchKind,
    FailureClass,
    Final,
    LossCause,
    Mark,
    Origin,
    export,
    finalize,
    loss_policy,
    turn_losses,
)
from dressage_segments.synthetic import SyntheticSession


def test_a_straight_session_is_one_segment_with_every_column_in_place():
    session = SyntheticSession()
    first = session.turn([1, 2], [3, 4], versions=[7, 7], logprobs=[-0.1, -0.2])
    session.turn([5], [6, 7, 8], parent=first, cuts=[1], versions=[7, 8, 8], logprobs=[-1, -2, -3])
    (segment,) = export(session.tree).segments
    assert segment.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert segment.loss_mask.tolist() == [0, 0, 1, 1, 0, 1, 1, 1]
    assert segment.origin.tolist() == [0, 0, 1, 1, Origin.ENVIRONMENT, 1, 1, 1]
    assert segment.version.tolist() == [-1, -1, 7, 7, -1, 7, 8, 8]
    assert segment.call.tolist() == [-1, -1, 0, 0, -1, 1, 2, 2]
    assert segment.offset.tolist() == [-1, -1, 0, 1, -1, 0, 0, 1]
    assert np.allclose(segment.logprobs, [0, 0, -0.1, -0.2, 0, -1, -2, -3])
    assert len(segment.calls) == 3
    assert segment.anchor


def test_a_shared_turn_is_trained_once_and_copied_with_mask_0_elsewhere():
    session = SyntheticSession()
    root = session.turn([1], [2])
    session.turn([3], [4], parent=root, keys=["x"])
    session.turn([5], [6], parent=root, keys=["y"], cut_reason="history_changed")
    left, right = export(session.tree).segments
    assert left.loss_mask.tolist() == [0, 1, 0, 1]
    assert right.loss_mask.tolist() == [0, 0, 0, 1]
    assert (left.parent, left.branch_offset) == (-1, 0)
    assert (right.parent, right.branch_offset) == (0, 2)
    assert right.cut_reason == "history_changed"
    assert right.origin.tolist() == [0, 1, 3, 1], "a copy still says that it was sampled"
    assert (left.anchor, right.anchor) == (False, True), "the main branch's last step"


def test_a_main_walk_trains_what_it_shares_with_an_older_side_branch():
    session = SyntheticSession()
    root = session.turn([1], [2])
    session.turn([3], [4], parent=root, keys=["x"], kind=BranchKind.SUBAGENT)
    session.turn([5], [6], parent=root, keys=["y"])
    main, side = export(session.tree).segments
    assert (main.kind, side.kind) == (BranchKind.MAIN, BranchKind.SUBAGENT)
    assert main.loss_mask.sum() == 2
    assert side.loss_mask.tolist() == [0, 0, 0, 1]
    assert main.anchor


def test_without_a_main_branch_the_last_segment_is_the_anchor():
    session = SyntheticSession()
    session.turn([1], [2], kind=BranchKind.SUBAGENT, keys=["a"])
    session.turn([3], [4], kind=BranchKind.SUBAGENT, keys=["b"])
    assert [segment.anchor for segment in export(session.tree).segments] == [False, True]


def test_a_session_without_turns_exports_nothing():
    exported = export(SyntheticSession().tree)
    assert (exported.segments, exported.sampled_tokens, dict(exported.lost_tokens)) == ((), 0, {})


def losses(session, **options):
    return [None if cause is None else str(cause) for cause in turn_losses(session.tree, **options)]


def test_of_retries_without_children_the_last_lives():
    session = SyntheticSession()
    for output in ([2], [3, 3], [4]):
        session.turn([1], output, keys=["u"])
    assert losses(session) == ["retry", "retry", None]
    assert dict(export(session.tree).lost_tokens) == {"retry": 3}
    assert len(export(session.tree).segments) == 1


def test_of_retries_the_one_that_was_delivered_lives():
    session = SyntheticSession()
    first = session.turn([1], [2], keys=["u"])
    session.mark(session.turn([1], [3], keys=["u"]), Mark.UNDELIVERED)
    assert losses(session) == [None, "undelivered"]
    session.turn([1], [4], keys=["u"])
    session.mark(first, Mark.DELIVERED)
    assert losses(session) == [None, "undelivered", "retry"]


def test_of_retries_those_with_children_live_even_both():
    session = SyntheticSession()
    first = session.turn([1], [2], keys=["u"])
    second = session.turn([1], [3], keys=["u"])
    session.turn([4], [5], parent=first, keys=["t"])
    assert losses(session) == [None, "retry", None]
    session.turn([4], [6], parent=second, keys=["t"])
    assert losses(session) == [None, None, None, None]
    assert export(session.tree).trained_tokens == 4


def test_a_last_reply_that_nobody_received_is_lost_as_undelivered():
    session = SyntheticSession()
    first = session.turn([1], [2])
    session.mark(session.turn([3], [4, 4], parent=first), Mark.UNDELIVERED)
    exported = export(session.tree)
    assert dict(exported.lost_tokens) == {"undelivered": 2}
    assert exported.segments[0].token_ids.tolist() == [1, 2]


def test_a_reply_that_was_answered_was_delivered_whatever_its_mark():
    session = SyntheticSession()
    first = session.turn([1], [2])
    session.mark(first, Mark.UNDELIVERED)
    session.turn([3], [4], parent=first)
    assert losses(session) == [None, None]


def test_what_hangs_on_a_superseded_turn_is_abandoned():
    session = SyntheticSession()
    first = session.turn([1], [2], keys=["u"])
    session.turn([3], [4], parent=first)
    session.turn([1], [5], keys=["u"])
    session.mark(first, Mark.SUPERSEDED)
    assert losses(session) == ["retry", "abandoned_branch", None]


def test_retries_without_message_keys_are_known_by_their_ids():
    session = SyntheticSession()
    for delta in ([1], [1], [2]):
        session.turn(delta, [9])
    assert losses(session) == ["retry", None, None]


def test_other_tools_make_another_branch_not_a_retry():
    session = SyntheticSession()
    session.turn([1], [2], keys=["u"], tools_hash="a")
    session.turn([1], [2], keys=["u"], tools_hash="b")
    assert losses(session) == [None, None]


def test_helper_calls_are_lost_by_rule_unless_the_rule_is_switched_off():
    session = SyntheticSession()
    session.turn([1], [2], keys=["u"])
    session.turn([3], [4, 5], keys=["title"], kind=BranchKind.HELPER)
    exported = export(session.tree)
    assert dict(exported.lost_tokens) == {"helper_call": 2}
    assert len(exported.segments) == 1
    trained = export(session.tree, train_helpers=True)
    assert trained.trained_tokens == 3
    assert [segment.kind for segment in trained.segments] == ["main", "helper"]


def test_a_helper_turn_that_a_live_turn_needs_is_context_with_mask_0():
    session = SyntheticSession()
    helper = session.turn([1], [2], kind=BranchKind.HELPER)
    session.turn([3], [4], parent=helper)
    (segment,) = export(session.tree).segments
    assert segment.loss_mask.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("logprobs", "cause"),
    [([np.nan, -1], "missing_logprobs"), ([-np.inf, -1], "misaligned"), ([0.5, -1], "misaligned")],
)
def test_a_call_with_unusable_logprobs_is_masked_as_a_whole_with_its_reason(logprobs, cause):
    session = SyntheticSession()
    session.turn([1], [2, 3, 4], logprobs=[*logprobs, -1], cuts=[2])
    exported = export(session.tree)
    assert exported.segments[0].loss_mask.tolist() == [0, 0, 0, 1]
    assert dict(exported.lost_tokens) == {cause: 2}
    assert np.isfinite(exported.segments[0].logprobs).all()


def test_a_call_that_was_declared_untrainable_keeps_its_reason():
    session = SyntheticSession()
    session.turn([1], [2, 3, 4], cuts=[2], untrainable={1: "length_cap"})
    exported = export(session.tree)
    assert exported.segments[0].loss_mask.tolist() == [0, 1, 1, 0]
    assert dict(exported.lost_tokens) == {"length_cap": 1}


@pytest.mark.parametrize("failure", list(FailureClass))
def test_the_failure_class_decides_whether_anything_trains(failure):
    session = SyntheticSession()
    session.turn([1], [2], keys=["u"])
    session.turn([1], [2, 3], keys=["u"])
    trajectory = finalize(session.tree, Final(1, failure, {}))
    policy = loss_policy(failure)
    assert trajectory.trained_tokens == (2 if policy.trains else 0)
    expected = {"retry": 1} if policy.trains else {"retry": 1, policy.lost_as.value: 2}
    assert dict(trajectory.lost_tokens) == expected
    assert all(segment.failure_class is failure for segment in trajectory.segments)
    assert sum(segment.anchor for segment in trajectory.segments) == 1


def test_a_timeout_that_was_graded_trains():
    session = SyntheticSession()
    session.turn([1], [2])
    assert finalize(session.tree, Final(1, FailureClass.TIMEOUT, {"reward": 0.0})).trained_tokens == 1


def test_a_token_that_was_lost_already_keeps_its_own_cause_when_the_rollout_is_lost():
    session = SyntheticSession()
    session.turn([1], [2, 3, 4], cuts=[1], untrainable={0: "length_cap"})
    exported = export(session.tree, lost_as=LossCause.STALE)
    assert dict(exported.lost_tokens) == {"length_cap": 1, "stale": 2}


def test_everything_can_be_counted_under_one_cause():
    session = SyntheticSession()
    session.turn([1], [2, 3])
    exported = export(session.tree, lost_as=LossCause.DELETED)
    assert (exported.trained_tokens, dict(exported.lost_tokens)) == (0, {"deleted": 2})


def test_roots_stay_in_the_order_in_which_they_began():
    session = SyntheticSession()
    session.turn([1], [2], keys=["a"], kind=BranchKind.SUBAGENT)
    session.turn([3], [4], keys=["b"])
    assert [segment.kind for segment in export(session.tree).segments] == ["subagent", "main"]
