import numpy as np
import pytest
from dressage_segments import (
    FailureClass,
    GroupError,
    InvalidFieldError,
    MissingGroupError,
    MissingRewardError,
    RewardConflictError,
    Rollout,
    grpo,
    reinforce_pp,
    reinforce_pp_baseline,
    rloo,
)
from hypothesis import given
from hypothesis import strategies as st

ALL = [grpo, rloo, reinforce_pp, reinforce_pp_baseline]


def rows(**groups):
    return [Rollout(f"{g}{n}", g, float(r)) for g, rewards in groups.items() for n, r in enumerate(rewards)]


batches = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0, 0.1]), st.sampled_from(list(FailureClass))),
    max_size=12,
).map(
    lambda found: [
        Rollout(f"r{n}", f"g{group}", reward, failure) for n, (group, reward, failure) in enumerate(found)
    ]
)


@pytest.mark.parametrize("estimator", ALL)
@given(batch=batches, data=st.data())
def test_order_and_repeated_rows_change_nothing(estimator, batch, data):
    expected = dict(zip([row.rollout_id for row in batch], estimator(batch), strict=True))
    again = data.draw(st.permutations(batch + [row for row in batch for _ in range(row.rollout_id < "r4")]))
    for row, value in zip(again, estimator(again), strict=True):
        assert value == pytest.approx(expected[row.rollout_id])


@given(batches)
def test_each_group_sums_to_zero_and_leaves_the_others_alone(batch):
    values = grpo(batch)
    for group in {row.group_id for row in batch}:
        inside = [row.group_id == group for row in batch]
        assert values[inside].sum() == pytest.approx(0, abs=1e-9)
        alone = grpo([row for row in batch if row.group_id == group])
        assert values[inside] == pytest.approx(alone)


@pytest.mark.parametrize("estimator", ALL)
@given(batch=batches)
def test_rollouts_that_do_not_count_get_nothing_and_give_nothing(estimator, batch):
    values = estimator(batch)
    counting = [row for row in batch if row.counts]
    assert values[[row.counts for row in batch]] == pytest.approx(estimator(counting))
    assert not values[[not row.counts for row in batch]].any()


def test_grpo_divides_by_the_sample_deviation_of_the_group():
    values = grpo(rows(a=[1, 0, 0, 1]))
    assert values == pytest.approx([0.8660, -0.8660, -0.8660, 0.8660], abs=1e-3)
    assert grpo(rows(a=[1, 0]), normalise_std=False).tolist() == [0.5, -0.5]


def test_equal_rewards_give_exactly_zero_whatever_the_rounding():
    assert grpo(rows(a=[0.1] * 3, b=[1 / 3] * 7)).tolist() == [0.0] * 10
    assert reinforce_pp(rows(a=[0.1] * 3)).tolist() == [0.0] * 3
    assert reinforce_pp_baseline(rows(a=[0.1] * 3)).tolist() == [0.0] * 3


@pytest.mark.parametrize("estimator", ALL)
@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e9])
def test_rewards_that_differ_by_a_graders_rounding_alone_are_equal(estimator, scale):
    thirds = [scale * reward for reward in (0.1 + 0.2, 0.3, 0.7 - 0.4, 1 - 0.7)]
    assert len(set(thirds)) > 1
    assert not estimator(rows(a=thirds)).any()


@pytest.mark.parametrize("estimator", ALL)
def test_rewards_that_differ_little_still_differ(estimator):
    values = estimator(rows(a=[1.0, 1.0 + 1e-12]))
    assert values[0] < 0 < values[1]


@pytest.mark.parametrize("estimator", ALL)
@pytest.mark.parametrize("reward", [1.7e308, -1e101])
def test_a_reward_whose_square_is_infinite_is_an_error_that_says_to_scale(estimator, reward):
    with pytest.raises(GroupError, match="scale the rewards"):
        estimator([*rows(a=[0, 1, 2]), Rollout("big", "a", reward)])


@pytest.mark.parametrize("estimator", ALL)
@given(
    st.lists(
        st.floats(-1e100, 1e100) | st.sampled_from([0.0, -0.0, 5e-324, 1e-300, 1e100]), min_size=1, max_size=6
    )
)
def test_finite_rewards_give_finite_advantages(estimator, rewards):
    assert np.isfinite(estimator(rows(a=rewards, b=[0, 1]))).all()


@pytest.mark.parametrize("estimator", ALL)
def test_what_a_failed_rollout_was_graded_never_matters_not_even_nan_in_several_rows(estimator):
    good = rows(a=[1, 0])
    for reward in (None, float("nan"), float("inf"), 1e300, 7.0):
        dead = Rollout("dead", "a", reward, FailureClass.INFRASTRUCTURE)
        again = Rollout(
            "dead", "a", None if reward is None else float(str(reward)), FailureClass.INFRASTRUCTURE
        )
        values = estimator([dead, *good, again])
        assert values[[0, 3]].tolist() == [0, 0]
        assert values[1:3].tolist() == estimator(good).tolist()


@pytest.mark.parametrize("estimator", ALL)
def test_a_batch_of_nothing_but_failed_rollouts_has_no_advantage(estimator):
    dead = [
        Rollout(f"r{number}", "g", None, failure)
        for number, failure in enumerate(FailureClass)
        if not Rollout("r", "g", None, failure).counts
    ]
    assert len(dead) > 3
    assert not estimator(dead).any()


@pytest.mark.parametrize("estimator", ALL)
def test_a_group_of_which_one_rollout_is_left_has_no_baseline_and_no_advantage(estimator):
    left = [Rollout("a", "g", 1.0), Rollout("b", "g", None, FailureClass.INFRASTRUCTURE)]
    assert not estimator(left).any()


def test_a_rollout_alone_in_its_group_gets_zero():
    assert grpo(rows(a=[1], b=[1, 0]), normalise_std=False).tolist() == [0, 0.5, -0.5]
    assert rloo(rows(a=[1])).tolist() == [0]


def test_rloo_takes_off_the_mean_of_the_others():
    assert rloo(rows(a=[1, 0, 0])).tolist() == pytest.approx([1, -0.5, -0.5])


def test_reinforce_pp_normalises_over_the_batch():
    values = reinforce_pp(rows(a=[1, 1], b=[0, 0]))
    assert values == pytest.approx([0.8660, 0.8660, -0.8660, -0.8660], abs=1e-3)


def test_the_baseline_form_takes_the_groups_mean_off_first():
    values = reinforce_pp_baseline(rows(a=[1, 1], b=[1, 0]))
    assert values[:2].tolist() == [0, 0]
    assert values[2] == -values[3] > 1


def test_an_empty_batch_has_no_advantages():
    assert all(len(estimator([])) == 0 for estimator in ALL)


@pytest.mark.parametrize("estimator", ALL)
def test_a_missing_group_id_is_an_error(estimator):
    with pytest.raises(MissingGroupError, match="group_id"):
        estimator([Rollout("r", "", 1.0)])


@pytest.mark.parametrize("reward", [None, float("nan"), float("inf")])
def test_a_missing_reward_is_an_error_and_never_a_zero(reward):
    with pytest.raises(MissingRewardError, match="'r'"):
        grpo([Rollout("r", "g", reward), Rollout("s", "g", 1.0)])


@pytest.mark.parametrize(
    "other", [Rollout("r", "g", 0.0), Rollout("r", "h", 1.0), Rollout("r", "g", 1.0, FailureClass.STALE)]
)
def test_rows_of_one_rollout_that_disagree_are_an_error(other):
    with pytest.raises(RewardConflictError, match="'r'"):
        grpo([Rollout("r", "g", 1.0), other])


def test_a_rollout_without_an_id_is_an_error():
    with pytest.raises(InvalidFieldError, match="rollout_id"):
        Rollout("", "g", 1.0)


def test_advantages_are_float64_in_input_order():
    values = grpo(rows(a=[1, 0]))
    assert values.dtype == np.float64
    assert values[0] > 0 > values[1]
