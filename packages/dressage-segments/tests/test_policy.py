import pytest
from dressage_segments import FailureClass, LossCause, loss_policy

OWN_DOING = {
    FailureClass.COMPLETED,
    FailureClass.TRUNCATED,
    FailureClass.POLICY_FAILURE,
    FailureClass.OVERFLOW,
}


@pytest.mark.parametrize("failure", list(FailureClass))
def test_p8_what_the_policy_did_counts_and_what_happened_to_it_does_not(failure):
    policy = loss_policy(failure)
    assert policy.counts_in_group == policy.trains == (failure in OWN_DOING)
    assert (policy.lost_as is None) == policy.trains, "a class that does not train has a cause to count under"


def test_a_timeout_is_graded_only_by_a_grader():
    assert not loss_policy(FailureClass.TIMEOUT).trains
    assert loss_policy(FailureClass.TIMEOUT).lost_as is LossCause.TIMEOUT
    assert loss_policy(FailureClass.TIMEOUT, graded=True).trains
    assert not loss_policy(FailureClass.INFRASTRUCTURE, graded=True).trains


def test_what_the_machine_broke_is_retried_and_what_was_stopped_is_not():
    retried = {failure for failure in FailureClass if loss_policy(failure).retry}
    assert retried == {FailureClass.INFRASTRUCTURE, FailureClass.TIMEOUT, FailureClass.STALE}
