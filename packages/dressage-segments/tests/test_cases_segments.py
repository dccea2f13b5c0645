"""Public failure cases of this field, as far as segments, advantages, denominators and versions show them."""

import dataclasses

import numpy as np
import pytest
from dressage_segments import (
    ROOT,
    BranchKind,
    ContextMismatchError,
    DeadGroups,
    FailureClass,
    IdsDigest,
    InvalidFieldError,
    Mark,
    MissingGroupError,
    RewardConflictError,
    Rollout,
    Sample,
    SessionInfo,
    VersionRule,
    Weighting,
    expand,
    export,
    grpo,
    stale_rollouts,
    token_weights,
)
from dressage_segments.synthetic import SyntheticSession
from hypothesis import given
from hypothesis import strategies as st


def mean_only(rows):
    return grpo(rows, normalise_std=False)


def sent_with(session, prompt, output, parent=ROOT, delta=()):
    """A turn on ``parent`` whose engine was in fact sent ``prompt``."""
    sent = IdsDigest(np.array(prompt, np.int32))
    index = session.turn(delta, output, parent=parent)
    turn = session.tree.turn(index)
    call = dataclasses.replace(
        turn.calls[0], call_id="other", prompt_tokens=sent.tokens, prompt_digest=sent.hexdigest()
    )
    return dataclasses.replace(turn, index=index + 1, calls=(call,))


# -- prefixes -----------------------------------------------------------------------------------------------


def test_c02_the_token_that_closes_a_turn_is_there_once_with_its_mask_and_logprob():
    session = SyntheticSession()
    first = session.turn([1], [11, 12, 90], logprobs=[-1, -2, -0.25])
    session.turn([21, 22], [5], parent=first)
    (segment,) = export(session.tree).segments
    assert segment.token_ids.tolist() == [1, 11, 12, 90, 21, 22, 5]
    assert segment.loss_mask.tolist() == [0, 1, 1, 1, 0, 0, 1]
    assert segment.logprobs[3] == np.float32(-0.25)


def test_c02_a_sampled_closer_is_never_trained_as_if_another_block_followed_it():
    session = SyntheticSession()
    first = session.turn([1], [11, 12, 91])
    forged = sent_with(session, [1, 11, 12, 90, 21, 22], [5], parent=first, delta=[21, 22])
    with pytest.raises(ContextMismatchError):
        session.tree.add(forged)
    session = SyntheticSession()
    session.turn([1], [11, 12, 91])
    session.turn([1, 11, 12, 90, 21, 22], [5], cut_reason="turn_closed_by_another_token")
    first, second = export(session.tree).segments
    assert first.token_ids.tolist() == [1, 11, 12, 91]
    assert first.loss_mask.tolist() == [0, 1, 1, 1]
    assert second.loss_mask.tolist() == [0, 0, 0, 0, 0, 0, 1]


def test_c06_calls_are_joined_only_if_the_second_prompt_holds_the_first_calls_ids():
    session = SyntheticSession()
    first = session.turn([1, 2], [50, 51, 52, 9], keys=["u"], reply="52")
    assert session.tree.match(["u", "52", "t"], "tools"), "messages alone find a candidate"
    forged = sent_with(session, [1, 2, 52, 9, 3], [7], parent=first, delta=[3])
    with pytest.raises(ContextMismatchError, match="other"):
        session.tree.add(forged)
    session = SyntheticSession()
    session.turn([1, 2], [50, 51, 52, 9], keys=["u"])
    session.turn([1, 2, 52, 9, 3], [7], keys=["u", "52", "t"])
    assert [s.token_ids.tolist() for s in export(session.tree).segments] == [
        [1, 2, 50, 51, 52, 9],
        [1, 2, 52, 9, 3, 7],
    ]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.data())
def test_e01_a_context_that_differs_anywhere_from_the_walk_is_refused_not_sliced(prefix, data):
    session = SyntheticSession()
    first = session.turn(prefix, [7, 0, 8])
    seen = [*prefix, 7, 0, 8, 1]
    at = data.draw(st.integers(0, len(seen) - 1))
    other = data.draw(
        st.sampled_from([seen[:at] + seen[at + 1 :], [*seen[:at], seen[at] + 1, *seen[at + 1 :]]])
    )
    with pytest.raises(ContextMismatchError):
        session.tree.add(sent_with(session, other, [5], parent=first, delta=[1]))


def test_c07_a_resent_first_request_leaves_a_dead_branch_and_a_session_that_goes_on():
    session = SyntheticSession()
    session.turn([1], [2], keys=["u1"], reply="lost answer")
    assert session.tree.match(["u1"], "tools") is None, "the empty state is a legal place to go back to"
    second = session.turn([1], [3], keys=["u1"], reply="second answer")
    match = session.tree.match(["u1", "second answer", "tool"], "tools")
    assert match
    assert match.index == second
    third = session.turn([4], [5], parent=second, keys=["tool"], reply="a3")
    with pytest.raises(InvalidFieldError):
        session.turn([6], [-1], parent=third, keys=["t2"])
    session.turn([6], [7], parent=third, keys=["t2"])
    exported = export(session.tree)
    assert [s.token_ids.tolist() for s in exported.segments] == [[1, 3, 4, 5, 6, 7]]
    assert dict(exported.lost_tokens) == {"retry": 1}


def test_c58_the_same_request_again_while_the_first_was_not_delivered_leaves_one_live_answer():
    session = SyntheticSession()
    first = session.turn([1], [2, 2], keys=["u"])
    session.mark(first, Mark.UNDELIVERED)
    session.turn([1], [3], keys=["u"])
    exported = export(session.tree)
    assert (exported.trained_tokens, dict(exported.lost_tokens)) == (1, {"undelivered": 2})


# -- alignment ----------------------------------------------------------------------------------------------


def test_c15_ids_and_logprobs_of_different_lengths_are_refused_never_padded_or_cut():
    session = SyntheticSession()
    with pytest.raises(InvalidFieldError, match="logprobs"):
        session.turn([1], [5, 6], logprobs=[-1, -1, -1])
    with pytest.raises(InvalidFieldError, match="logprobs"):
        session.turn([1], [5, 6, 7, 8], logprobs=[])


def test_c15_a_call_without_logprobs_is_recorded_masked_and_counted_with_its_reason():
    session = SyntheticSession()
    session.turn([1], [5, 6], logprobs=[np.nan] * 2)
    session.turn([2], [5, 6, 7], logprobs=[np.nan] * 3, untrainable={0: "misaligned"})
    exported = export(session.tree)
    assert exported.trained_tokens == 0
    assert dict(exported.lost_tokens) == {"missing_logprobs": 2, "misaligned": 3}


def test_c16_a_call_with_sampling_of_its_own_is_flagged_in_the_segment():
    session = SyntheticSession()
    first = session.turn([1], [2], sampling={"temperature": 1.0})
    second = session.turn([3], [4], parent=first, sampling={"temperature": 0.2}, cuts=[0])
    session.turn([5], [6], parent=second, sampling={"temperature": 1.0})
    (segment,) = export(session.tree).segments
    assert segment.sampling == {
        "temperature": 1.0,
        "overrides": {segment.calls[1]: {"temperature": 0.2}, segment.calls[2]: {"temperature": 0.2}},
    }


# -- segments -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tools", ["read+write", "write+read", "read, a space changed", "none, final turn"])
def test_c17_other_tools_never_reuse_a_prefix_and_the_earlier_segment_is_kept(tools):
    session = SyntheticSession()
    session.turn([1], [2], keys=["sys", "u"], reply="a", tools_hash="read")
    keys = ["sys", "u", "a", "t"]
    assert session.tree.match(keys, "read") is not None
    assert session.tree.match(keys, tools) is None
    assert session.tree.divergence(keys, tools) == "tools_changed"
    session.turn([9, 1, 2, 3], [4], keys=keys, tools_hash=tools, cut_reason="tools_changed")
    first, second = export(session.tree).segments
    assert (first.tools_hash, second.tools_hash) == ("read", tools)
    assert first.loss_mask.tolist() == [0, 1]
    assert second.loss_mask.tolist() == [0, 0, 0, 0, 1]
    assert second.cut_reason == "tools_changed"
    assert (first.anchor, second.anchor) == (False, True)


def test_c19_an_episode_cut_in_pieces_trains_every_output_once_with_one_advantage(
    finished,
):
    session = SyntheticSession(SessionInfo("ep", "i", "g", "ep"))
    main = ROOT
    for step in range(3):
        main = session.turn([step], [10 + step], parent=main, keys=[f"m{step}"])
    side = session.turn([50], [20], keys=["sub"], kind=BranchKind.SUBAGENT)
    session.turn([51], [21], parent=side, keys=["sub2"], kind=BranchKind.SUBAGENT)
    session.turn([60], [30], keys=["summarise"], kind=BranchKind.COMPACTION)
    again = session.turn([70, 30], [40], keys=["summary"], cut_reason="compaction")
    session.turn([71], [41], parent=again, keys=["m4"])
    other = SyntheticSession(SessionInfo("other", "i", "g", "other"))
    other.turn([1], [2])
    trajectory = finished(session, reward=1.0)[0]
    batch = expand([trajectory, finished(other, reward=0.0)[0]], mean_only)
    rows = [sample for sample in batch.samples if sample.rollout_id == "ep"]
    assert [row.kind for row in rows] == ["main", "subagent", "compaction", "main"]
    trained = sorted(int(t) for row in rows for t in row.token_ids[row.loss_mask == 1])
    assert trained == [10, 11, 12, 20, 21, 30, 40, 41]
    assert [row.trained_tokens for row in rows] == [3, 2, 1, 2]
    assert {row.advantage for row in rows} == {0.5}
    assert {row.reward for row in rows} == {1.0}
    assert rows[3].loss_mask.tolist() == [0, 0, 1, 0, 1], "the copied summary is context"
    assert [row.anchor for row in rows] == [False, False, False, True]


# -- versions -----------------------------------------------------------------------------------------------


def test_c37_a_turn_that_spans_an_update_keeps_the_version_of_each_token(finished):
    session = SyntheticSession()
    session.turn([1], [5] * 7, versions=[3, 3, 3, 3, 4, 4, 4], cuts=[4])
    trajectory = finished(session)[0]
    (segment,) = trajectory.segments
    assert segment.version.tolist() == [-1, 3, 3, 3, 3, 4, 4, 4]
    assert segment.offset.tolist() == [-1, 0, 1, 2, 3, 0, 1, 2]
    assert stale_rollouts([trajectory], VersionRule(5, 1)) == {"s"}, "staleness uses the oldest"
    assert stale_rollouts([trajectory], VersionRule(5, 2)) == set()


def test_c37_a_version_that_nobody_named_is_unknown_not_current(finished):
    session = SyntheticSession()
    session.turn([1], [5], versions=[-1])
    trajectory = finished(session)[0]
    assert trajectory.segments[0].version.tolist() == [-1, -1]
    assert stale_rollouts([trajectory], VersionRule(0, 1000)) == {"s"}


# -- advantages ---------------------------------------------------------------------------------------------

UNEVEN = {"A": [1, 0, 0], "B": [2, 2], "C": [0, 1, 1, 0]}
EXPECTED = {"A": [2 / 3, -1 / 3, -1 / 3], "B": [0, 0], "C": [-0.5, 0.5, 0.5, -0.5]}


@given(st.randoms())
def test_c40_uneven_groups_are_normalised_each_by_itself_in_any_order(rng):
    pairs = [
        (Rollout(f"{g}{n}", g, float(r)), EXPECTED[g][n]) for g in UNEVEN for n, r in enumerate(UNEVEN[g])
    ]
    rng.shuffle(pairs)
    assert mean_only([row for row, _ in pairs]).tolist() == pytest.approx([value for _, value in pairs])


def test_c40_a_missing_group_id_is_an_error():
    with pytest.raises(MissingGroupError):
        mean_only([Rollout("a", "A", 1.0), Rollout("b", "", 0.0)])


@given(st.permutations([Rollout("P", "g", 1.0)] * 4 + [Rollout("Q", "g", 0.0)]))
def test_c41_a_rollout_in_many_segments_counts_once_in_mean_and_deviation(rows):
    for row, value in zip(rows, mean_only(rows), strict=True):
        assert value == (0.5 if row.rollout_id == "P" else -0.5)
    for row, value in zip(rows, grpo(rows), strict=True):
        assert value == pytest.approx(0.7071 if row.rollout_id == "P" else -0.7071, abs=1e-4)


def test_c41_siblings_with_different_rewards_are_an_error():
    with pytest.raises(RewardConflictError):
        mean_only([Rollout("P", "g", 1.0), Rollout("P", "g", 0.5), Rollout("Q", "g", 0.0)])


def test_c44_deaths_and_crashed_graders_are_not_zeros(finished):
    sessions = []
    ends = [(1.0, "completed"), (1.0, "completed"), (None, "infrastructure"), (None, "timeout")]
    for number, (reward, failure) in enumerate(ends):
        session = SyntheticSession(SessionInfo(f"r{number}", "i", "g", f"r{number}"))
        session.turn([1], [2, 3])
        sessions.append(finished(session, reward=reward, failure_class=FailureClass(failure))[0])
    batch = expand(sessions, mean_only)
    assert [sample.advantage for sample in batch.samples] == [0, 0, 0, 0]
    assert [sample.trained_tokens for sample in batch.samples] == [2, 2, 0, 0]
    assert dict(batch.lost_tokens) == {"infrastructure_failure": 2, "timeout": 2}
    weights = token_weights(batch.samples, Weighting.ROLLOUT, dead_groups=DeadGroups.COUNT)
    assert weights.per_sample.tolist() == [0.25, 0.25, 0, 0]


def test_c44_a_failed_task_is_a_zero_and_counts():
    rows = [
        Rollout("a", "g", 1.0),
        Rollout("b", "g", 0.0, FailureClass.POLICY_FAILURE),
        Rollout("c", "g", None, FailureClass.INFRASTRUCTURE),
    ]
    assert mean_only(rows).tolist() == [0.5, -0.5, 0.0]


# -- denominators -------------------------------------------------------------------------------------------


def uneven(finished, cuts):
    """P in ``cuts`` segments of 10 trained tokens, Q in one; one group each."""
    sessions = []
    for name, count in (("P", cuts), ("Q", 1)):
        session = SyntheticSession(SessionInfo(name, "i", f"g{name}", name))
        for number in range(count):
            session.turn([number], range(10), keys=[f"k{number}"])
        sessions.append(finished(session, reward=1.0)[0])
    return expand(sessions, lambda rows: np.ones(len(rows))).samples


@pytest.mark.parametrize("weighting", [Weighting.PROMPT, Weighting.ROLLOUT])
def test_c42_many_segments_weigh_no_more_than_one(finished, weighting):
    samples = uneven(finished, 4)
    weights = token_weights(samples, weighting, dead_groups=DeadGroups.COUNT).per_sample
    totals = {"P": 0.0, "Q": 0.0}
    for sample, weight in zip(samples, weights, strict=True):
        totals[sample.rollout_id] += weight * sample.trained_tokens
    assert totals == pytest.approx({"P": 0.5, "Q": 0.5})


@given(order=st.permutations(range(5)), split=st.integers(1, 4), garbage=st.floats(-1e30, 1e30))
@pytest.mark.parametrize("weighting", list(Weighting))
def test_c42_micro_batches_empty_segments_and_garbage_change_no_loss(weighting, order, split, garbage):
    rng = np.random.default_rng(0)
    samples = list(_plain_samples())
    values = [rng.normal(size=len(s.token_ids)) for s in samples]

    def loss(rows, xs, cut):
        weights = token_weights(rows, weighting, dead_groups=DeadGroups.COUNT).per_sample
        parts = [w * np.sum(s.loss_mask * x) for w, s, x in zip(weights, rows, xs, strict=True)]
        return sum(parts[:cut]) + sum(parts[cut:])

    expected = loss(samples, values, 0)
    shuffled = [samples[i] for i in order]
    dirty = [np.where(samples[i].loss_mask == 1, values[i], garbage) for i in order]
    empty = dataclasses.replace(samples[0], loss_mask=np.zeros_like(samples[0].loss_mask))
    found = loss([*shuffled, empty], [*dirty, np.full(len(empty.token_ids), garbage)], split)
    assert found == pytest.approx(expected)


def _plain_samples():
    for name, count in (("P", 4), ("Q", 1)):
        for number in range(count):
            yield Sample(
                name, "i", f"g{name}", name, number, True, BranchKind.MAIN,
                np.arange(12, dtype=np.int32), np.array([0, 0] + [1] * 10, np.uint8),
                np.zeros(12, np.float32), np.zeros(12, np.int32), 1.0, 1.0, FailureClass.COMPLETED,
            )  # fmt: skip


@pytest.mark.parametrize("weighting", list(Weighting))
def test_c42_an_all_masked_step_weighs_nothing_and_says_so(weighting):
    masked = [dataclasses.replace(s, loss_mask=np.zeros_like(s.loss_mask)) for s in _plain_samples()]
    weights = token_weights(masked, weighting, dead_groups=DeadGroups.COUNT)
    assert not weights.per_sample.any()
    assert weights.tokens == 0, "no optimiser step"


@pytest.mark.parametrize(("rule", "live_weight"), [(DeadGroups.COUNT, 0.25), (DeadGroups.DROP, 1.0)])
def test_e16_dead_groups_are_counted_or_dropped_by_an_explicit_rule_and_reported(rule, live_weight):
    one = next(_plain_samples())
    batch = [
        dataclasses.replace(one, group_id=f"g{n}", rollout_id=f"r{n}", advantage=float(n == 0))
        for n in range(4)
    ]
    weights = token_weights(batch, Weighting.PROMPT, dead_groups=rule)
    assert weights.per_sample[0] * one.trained_tokens == pytest.approx(live_weight)
    assert weights.dead_groups == 3
    assert weights.groups == (4 if rule is DeadGroups.COUNT else 1)
