"""P1-P5 of the export, over random sessions of every shape; read from the segments alone."""

from collections import Counter

import numpy as np
from dressage_segments import (
    DeadGroups,
    FailureClass,
    Origin,
    Weighting,
    expand,
    ids_digest,
    token_weights,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SEEDS = st.integers(0, 100_000)
ANY_FIXTURE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


def calls_of(session):
    return {call.call_id: (turn, call) for turn in session.tree.turns for call in turn.calls}


@ANY_FIXTURE
@given(SEEDS)
def test_p1_every_trained_token_follows_exactly_what_the_engine_was_sent(random_trajectory, seed):
    session, trajectory, _ = random_trajectory(seed)
    calls = calls_of(session)
    for segment in trajectory.segments:
        for at in np.flatnonzero(segment.loss_mask).tolist():
            _, call = calls[segment.calls[segment.call[at]]]
            start = at - int(segment.offset[at])
            assert call.prompt_tokens == start
            assert call.prompt_digest == ids_digest(segment.token_ids[:start])


@ANY_FIXTURE
@given(SEEDS, st.sampled_from(list(FailureClass)), st.booleans())
def test_p2_every_sampled_token_is_trained_once_or_counted_as_lost(random_trajectory, seed, failure, helpers):
    session, trajectory, _ = random_trajectory(seed, failure_class=failure, train_helpers=helpers)
    trained: Counter[tuple[str, int]] = Counter()
    for segment in trajectory.segments:
        for at in np.flatnonzero(segment.loss_mask).tolist():
            trained[segment.calls[segment.call[at]], int(segment.offset[at])] += 1
    assert set(trained.values()) <= {1}
    assert len(trained) == trajectory.trained_tokens
    sampled = sum(len(turn.output_ids) for turn in session.tree.turns)
    assert sampled == trajectory.sampled_tokens
    assert sampled == trajectory.trained_tokens + sum(trajectory.lost_tokens.values())
    assert sum(segment.anchor for segment in trajectory.segments) == bool(trajectory.segments)


@ANY_FIXTURE
@given(SEEDS)
def test_p3_trained_tokens_have_the_engines_own_finite_logprobs(random_trajectory, seed):
    session, trajectory, _ = random_trajectory(seed)
    trajectory.validate()
    calls = calls_of(session)
    for segment in trajectory.segments:
        for at in np.flatnonzero(segment.loss_mask).tolist():
            turn, call = calls[segment.calls[segment.call[at]]]
            first = sum(c.output_tokens for c in turn.calls[: turn.calls.index(call)])
            assert not call.untrainable
            assert segment.logprobs[at] == turn.logprobs[first + segment.offset[at]] <= 0


@ANY_FIXTURE
@given(st.lists(SEEDS, min_size=1, max_size=4), st.sampled_from(list(Weighting)), st.randoms())
def test_p4_how_rollouts_fall_into_segments_and_micro_batches_changes_no_loss(
    random_trajectory, seeds, weighting, rng
):
    """The loss of a step from its segments equals the one from each rollout's tokens, as if never cut."""
    trajectories = [random_trajectory(seed)[1] for seed in set(seeds)]
    samples = list(expand(trajectories, lambda rows: np.ones(len(rows))).samples)
    rng.shuffle(samples)
    weights = token_weights(samples, weighting, dead_groups=DeadGroups.COUNT)
    cut = rng.randint(0, len(samples))
    loss = 0.0
    for part in (slice(0, cut), slice(cut, None)):
        for sample, weight in zip(samples[part], weights.per_sample[part], strict=True):
            loss += weight * float(np.sum(sample.loss_mask * sample.token_ids))
    uncut = [
        np.concatenate([np.zeros(0), *(s.token_ids[s.loss_mask == 1] for s in trajectory.segments)])
        for trajectory in trajectories
    ]
    live = [tokens for tokens in uncut if len(tokens)]
    if weighting is Weighting.TOKEN:
        live = [np.concatenate(live)] if live else []
    expected = float(np.mean([tokens.mean() for tokens in live])) if live else 0.0
    assert abs(loss - expected) < 1e-9


@ANY_FIXTURE
@given(SEEDS)
def test_p5_every_sampled_token_names_its_call_its_offset_and_its_version(random_trajectory, seed):
    session, trajectory, _ = random_trajectory(seed)
    calls = calls_of(session)
    for segment in trajectory.segments:
        for at in np.flatnonzero(segment.origin == Origin.SAMPLED).tolist():
            turn, call = calls[segment.calls[segment.call[at]]]
            where = sum(c.output_tokens for c in turn.calls[: turn.calls.index(call)]) + int(
                segment.offset[at]
            )
            assert turn.output_ids[where] == segment.token_ids[at]
            assert turn.versions[where] == segment.version[at]
