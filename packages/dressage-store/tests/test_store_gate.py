import threading

import pytest
from dressage_store import StoreClosedError, StoreReadOnlyError
from dressage_store.gate import Gate


def enters_elsewhere(use):
    """Whether another thread comes in and out again."""
    came = threading.Event()

    def enter():
        with use():
            came.set()

    thread = threading.Thread(target=enter, daemon=True)
    thread.start()
    thread.join(5)
    return came.is_set() and not thread.is_alive()


def test_whoever_was_refused_or_failed_inside_leaves_the_gate_open_to_others(tmp_path):
    gate = Gate(tmp_path, read_only=True)
    with pytest.raises(StoreReadOnlyError, match="read_only"), gate.writing():
        raise AssertionError("came in")
    with pytest.raises(KeyError), gate.reading():
        raise KeyError
    assert enters_elsewhere(gate.reading)


def test_a_thread_that_is_inside_may_enter_again_and_nobody_else_until_it_left(tmp_path):
    gate = Gate(tmp_path, read_only=False)
    seen: list[str] = []

    def other():
        with gate.writing():
            seen.append("other")

    thread = threading.Thread(target=other)
    with gate.writing():
        thread.start()
        with gate.reading(), gate.writing():
            thread.join(0.1)
            seen.append("first")
        thread.join(0.1)
        assert seen == ["first"]
    thread.join(5)
    assert seen == ["first", "other"]


def test_after_closing_every_thread_is_refused_and_not_left_waiting(tmp_path):
    gate = Gate(tmp_path, read_only=False)
    with gate.closing() as first:
        assert first
    for use in (gate.reading, gate.writing):
        for _ in range(2):
            with pytest.raises(StoreClosedError, match="was closed"), use():
                raise AssertionError("came in")
    refused = []

    def ask():
        try:
            gate.reading().__enter__()
        except StoreClosedError as error:
            refused.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(5)
    assert len(refused) == 1
