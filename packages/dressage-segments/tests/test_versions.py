import pytest
from dressage_segments import (
    UNKNOWN_VERSION,
    FailureClass,
    InvalidFieldError,
    ProvenanceError,
    VersionRule,
    expand,
    grpo,
    oldest_version,
    stale_rollouts,
)
from dressage_segments.synthetic import SyntheticSession


def trajectory_of(finished, versions, name="s"):
    session = SyntheticSession(name)
    session.turn([1], [5] * len(versions), versions=versions)
    return finished(session)[0]


@pytest.mark.parametrize(("limit", "stale"), [(0, True), (1, True), (2, False), (3, False)])
def test_the_oldest_trained_token_decides_for_the_whole_rollout(finished, limit, stale):
    trajectory = trajectory_of(finished, [5, 3, 5])
    assert oldest_version(trajectory) == 3
    assert stale_rollouts([trajectory], VersionRule(5, limit)) == ({"s"} if stale else set())


def test_an_unknown_version_is_infinitely_stale_under_an_active_rule(finished):
    trajectory = trajectory_of(finished, [5, UNKNOWN_VERSION])
    assert stale_rollouts([trajectory], VersionRule(5, 10**9)) == {"s"}


def test_versions_of_tokens_that_do_not_train_do_not_matter(finished):
    session = SyntheticSession()
    session.turn([1], [2], versions=[0], keys=["u"])
    session.turn([1], [2], versions=[5], keys=["u"])
    assert stale_rollouts([finished(session)[0]], VersionRule(5, 0)) == set()
    empty = finished(SyntheticSession("e"))[0]
    assert oldest_version(empty) is None
    assert stale_rollouts([empty], VersionRule(5, 0)) == set()


def test_a_token_newer_than_the_trainer_is_an_error(finished):
    with pytest.raises(ProvenanceError, match="monotonic"):
        stale_rollouts([trajectory_of(finished, [6])], VersionRule(5, 0))


def test_a_stale_rollout_is_masked_counted_and_out_of_the_statistics(finished):
    fresh, old = trajectory_of(finished, [5, 5], "fresh"), trajectory_of(finished, [1, 5, 5], "old")
    batch = expand([fresh, old], grpo, version_rule=VersionRule(5, 1))
    assert [sample.trained_tokens for sample in batch.samples] == [2, 0]
    assert dict(batch.lost_tokens) == {"version_rule": 3}
    assert batch.rollouts["old"].failure_class is FailureClass.STALE
    assert batch.sampled_tokens == batch.trained_tokens + 3


@pytest.mark.parametrize("numbers", [(-1, 0), (0, -1)])
def test_a_negative_rule_is_refused(numbers):
    with pytest.raises(InvalidFieldError):
        VersionRule(*numbers)
