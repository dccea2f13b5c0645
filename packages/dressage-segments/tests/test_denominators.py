import dataclasses

import numpy as np
import pytest
from dressage_segments import (
    BranchKind,
    DeadGroups,
    FailureClass,
    InvalidFieldError,
    Sample,
    Weighting,
    mask_sums,
    token_weights,
)
from hypothesis import given
from hypothesis import strategies as st


def sample(rollout, group, mask, advantage=1.0, index=0):
    mask = np.array(mask, np.uint8)
    size = len(mask)
    return Sample(
        session_id=rollout,
        instance_id="",
        group_id=group,
        rollout_id=rollout,
        segment_index=index,
        anchor=True,
        kind=BranchKind.MAIN,
        token_ids=np.zeros(size, np.int32),
        loss_mask=mask,
        logprobs=np.zeros(size, np.float32),
        versions=np.zeros(size, np.int32),
        advantage=advantage,
        reward=None,
        failure_class=FailureClass.COMPLETED,
    )


def weigh(samples, weighting=Weighting.PROMPT, dead=DeadGroups.COUNT):
    return token_weights(samples, weighting, dead_groups=dead)


batches = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.lists(st.integers(0, 1), max_size=9), st.booleans()),
    max_size=7,
).map(
    lambda found: [
        sample(f"g{group}r{rollout}", f"g{group}", mask, 1.0 if group else 0.0, index)
        for index, (group, rollout, mask, _) in enumerate(found)
    ]
)
rules = st.sampled_from(list(Weighting))
deads = st.sampled_from(list(DeadGroups))


def loss_parts(samples, weights):
    """Each rollout's total weight: what its loss is multiplied by."""
    parts: dict[str, float] = {}
    for one, weight in zip(samples, weights.per_sample, strict=True):
        parts[one.rollout_id] = parts.get(one.rollout_id, 0.0) + weight * one.trained_tokens
    return parts


@given(batches, rules, deads, st.data())
def test_cutting_segments_anywhere_changes_no_token_weight(samples, rule, dead, data):
    cut = []
    for one in samples:
        at = data.draw(st.integers(0, len(one.loss_mask)))
        for mask in (one.loss_mask[:at], one.loss_mask[at:], []):
            cut.append(sample(one.rollout_id, one.group_id, mask, one.advantage))
    whole, pieces = weigh(samples, rule, dead), weigh(cut, rule, dead)
    assert loss_parts(cut, pieces) == pytest.approx(loss_parts(samples, whole))
    for index, one in enumerate(samples):
        for piece in range(3 * index, 3 * index + 2):
            if cut[piece].trained_tokens:
                assert pieces.per_sample[piece] == pytest.approx(whole.per_sample[index])
        assert one.trained_tokens or whole.per_sample[index] == 0


@given(batches, rules, deads, st.randoms())
def test_order_changes_nothing(samples, rule, dead, rng):
    order = list(range(len(samples)))
    rng.shuffle(order)
    before = weigh(samples, rule, dead).per_sample
    after = weigh([samples[i] for i in order], rule, dead).per_sample
    assert after.tolist() == pytest.approx(before[order].tolist())


@given(batches, rules, deads)
def test_weights_of_a_step_add_up_to_one_or_there_is_nothing_to_learn(samples, rule, dead):
    weights = weigh(samples, rule, dead)
    total = sum(loss_parts(samples, weights).values())
    assert np.isfinite(weights.per_sample).all()
    assert total == pytest.approx(1.0 if weights.tokens else 0.0)


def test_each_weighting_makes_equal_what_it_names():
    samples = [
        sample("p1", "P", [1] * 10),
        sample("p2", "P", [1] * 30),
        sample("q1", "Q", [1] * 60),
    ]
    assert loss_parts(samples, weigh(samples, Weighting.PROMPT)) == pytest.approx(
        {"p1": 0.125, "p2": 0.375, "q1": 0.5}
    )
    assert loss_parts(samples, weigh(samples, Weighting.ROLLOUT)) == pytest.approx(
        {"p1": 1 / 3, "p2": 1 / 3, "q1": 1 / 3}
    )
    assert loss_parts(samples, weigh(samples, Weighting.TOKEN)) == pytest.approx(
        {"p1": 0.1, "p2": 0.3, "q1": 0.6}
    )


def test_mask_sums_are_the_prompt_equal_denominators_of_the_contract():
    samples = [sample("a", "P1", [1] * 100), sample("b", "P1", [1] * 150), sample("c", "P2", [1] * 200)]
    assert mask_sums(weigh(samples), 4).tolist() == pytest.approx([125, 125, 100])


def test_dead_samples_count_in_neither_factor_of_a_mask_sum():
    samples = [
        sample("a", "P1", [1] * 100),
        sample("b", "P1", [1] * 150),
        sample("c", "P2", [1] * 200),
        sample("d", "P2", [0] * 70),
        sample("e", "P3", [0] * 70),
    ]
    assert mask_sums(weigh(samples), 4).tolist() == pytest.approx([125, 125, 100, 0, 0])


def test_a_batch_size_below_1_is_refused():
    with pytest.raises(InvalidFieldError, match="global_batch_size"):
        mask_sums(weigh([]), 0)


def test_a_sample_without_a_group_is_refused():
    with pytest.raises(InvalidFieldError, match="group_id"):
        weigh([sample("a", "", [1])])


def test_a_group_with_some_advantage_is_live_whichever_rollout_has_it():
    samples = [sample("a", "P", [1], 0.0), sample("b", "P", [1], 1.0), sample("c", "Q", [1], 0.0)]
    weights = weigh(samples, dead=DeadGroups.DROP)
    assert weights.per_sample.tolist() == [0.5, 0.5, 0.0]
    assert (weights.groups, weights.dead_groups, weights.rollouts) == (1, 1, 2)
    assert dataclasses.replace(weights).weighting is Weighting.PROMPT
