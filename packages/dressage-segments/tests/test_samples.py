import dataclasses

import numpy as np
import pytest
from dressage_segments import (
    DeadGroups,
    FailureClass,
    GroupError,
    InvalidFieldError,
    MissingRewardError,
    ProvenanceError,
    SessionInfo,
    VersionRule,
    Weighting,
    expand,
    grpo,
    rollout_of,
    token_weights,
)
from dressage_segments.synthetic import SyntheticSession
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def mean_only(rows):
    return grpo(rows, normalise_std=False)


def rollout(name, group="g"):
    return SyntheticSession(SessionInfo(name, "i", group, name))


@pytest.fixture
def pair(finished):
    """Two rollouts of one group: ``won`` in three segments, ``lost`` in one."""
    won = rollout("won")
    for number in range(3):
        won.turn([number], [1, 2], keys=[f"branch-{number}"])
    other = rollout("lost")
    other.turn([9], [1, 2, 3])
    return [finished(won, reward=1.0)[0], finished(other, reward=0.0)[0]]


def test_every_segment_of_a_rollout_gets_the_rollouts_one_advantage(pair):
    batch = expand(pair, lambda rows: grpo(rows, normalise_std=False))
    assert [sample.advantage for sample in batch.samples] == [0.5, 0.5, 0.5, -0.5]
    assert [sample.anchor for sample in batch.samples] == [False, False, True, True]
    assert dict(batch.advantages) == {"won": 0.5, "lost": -0.5}


def test_samples_carry_the_segments_own_columns(pair):
    batch = expand(pair, grpo)
    for sample, segment in zip(batch.samples, [s for t in pair for s in t.segments], strict=True):
        assert sample.token_ids is segment.token_ids
        assert sample.loss_mask is segment.loss_mask
        assert sample.logprobs is segment.logprobs
        assert sample.versions is segment.version
        assert (sample.rollout_id, sample.group_id) == (segment.rollout_id, "g")
        assert sample.segment_index == segment.segment_index


def test_a_rollout_whose_every_token_was_lost_is_still_in_its_groups_mean(pair, finished):
    silent = rollout("silent")
    trajectory, _ = finished(silent, reward=0.0)
    assert trajectory.segments == ()
    batch = expand([*pair, trajectory], lambda rows: grpo(rows, normalise_std=False))
    assert batch.advantages["won"] == pytest.approx(2 / 3)


def test_a_class_that_does_not_count_gets_no_gradient_whatever_its_masks_say(pair):
    forged = dataclasses.replace(pair[1], failure_class=FailureClass.INFRASTRUCTURE)
    batch = expand([pair[0], forged], grpo)
    assert batch.samples[-1].trained_tokens == 0
    assert dict(batch.lost_tokens) == {"infrastructure_failure": 3}
    assert batch.samples[0].advantage == 0, "alone in its group now"


def test_a_counting_rollout_without_a_reward_is_an_error(pair, finished):
    with pytest.raises(MissingRewardError, match="'lost'"):
        expand([pair[0], dataclasses.replace(pair[1], outcome={})], grpo)


@pytest.mark.parametrize("reward", ["1", [1.0]])
def test_a_reward_that_is_no_number_is_an_error(pair, reward):
    with pytest.raises(InvalidFieldError, match=r"outcome\.reward"):
        rollout_of(dataclasses.replace(pair[0], outcome={"reward": reward}))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10_000), st.integers(0, 3))
def test_p2_sampled_is_trained_plus_lost_after_expansion_too(random_trajectory, seed, staleness):
    _, trajectory, _ = random_trajectory(seed)
    batch = expand([trajectory], grpo, version_rule=VersionRule(3, staleness))
    assert batch.sampled_tokens == batch.trained_tokens + sum(batch.lost_tokens.values())
    assert batch.trained_tokens == sum(int(np.sum(s.loss_mask)) for s in batch.samples)


def test_a_session_that_was_delivered_twice_is_refused_in_one_batch(pair):
    with pytest.raises(ProvenanceError, match="twice in one batch"):
        expand([*pair, pair[0]], grpo)


def test_two_sessions_of_one_rollout_count_once_and_both_train(finished):
    def of(name, rollout, reward):
        session = SyntheticSession(SessionInfo(name, "i", "g", rollout))
        session.turn([1], [2, 3])
        return finished(session, reward=reward)[0]

    batch = expand([of("a1", "a", 1.0), of("a2", "a", 1.0), of("b", "b", 0.0)], mean_only)
    assert [sample.advantage for sample in batch.samples] == [0.5, 0.5, -0.5]
    assert batch.trained_tokens == 6
    weights = token_weights(batch.samples, Weighting.ROLLOUT, dead_groups=DeadGroups.COUNT)
    assert weights.per_sample.tolist() == [0.125, 0.125, 0.25]


def test_an_estimator_that_gives_no_number_is_refused(pair):
    with pytest.raises(GroupError, match="nan"):
        expand(pair, lambda rows: np.full(len(rows), np.nan))


def test_a_reward_too_large_for_a_float_is_an_error_that_names_the_session(pair):
    huge = dataclasses.replace(pair[1], outcome={"reward": 10**400})
    with pytest.raises(InvalidFieldError, match=pair[1].session_id):
        expand([pair[0], huge], grpo)


def test_a_rollout_without_any_trainable_token_weighs_nothing_and_divides_nothing_by_zero(finished):
    def of(name, logprob, reward):
        session = SyntheticSession(SessionInfo(name, "i", "g", name))
        session.turn([1], [2, 3], logprobs=[logprob, logprob])
        return finished(session, reward=reward)[0]

    batch = expand([of("a", float("nan"), 1.0), of("b", -0.1, 0.0)], mean_only)
    assert [sample.advantage for sample in batch.samples] == [0.5, -0.5], "its reward still counts"
    for weighting in Weighting:
        weights = token_weights(batch.samples, weighting, dead_groups=DeadGroups.DROP)
        assert weights.per_sample.tolist() == [0, 0.5]
    nothing = expand([of("a", float("nan"), 1.0), of("b", float("-inf"), 0.0)], mean_only)
    weights = token_weights(nothing.samples, Weighting.PROMPT, dead_groups=DeadGroups.COUNT)
    assert (weights.tokens, weights.per_sample.tolist()) == (0, [0, 0])
