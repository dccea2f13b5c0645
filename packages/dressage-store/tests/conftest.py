import pytest
from dressage_store.contract import session_of


@pytest.fixture
def session():
    """``session(name, turns)`` → a finished session's log and trajectory."""
    return session_of


@pytest.fixture
def fill():
    """Write a whole session into a store: ``fill(store, name)`` → its log and trajectory."""

    def write(store, name, turns=4):
        log, trajectory = session_of(name, turns)
        for record in log:
            store.append(name, record)
        store.put(trajectory)
        return log, trajectory

    return write
