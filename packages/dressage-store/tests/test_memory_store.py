import pytest
from dressage_store import MemoryStore, StoreFullError


def test_usage_counts_what_is_held_and_a_quota_refuses_before_writing(fill, session):
    with MemoryStore() as store:
        fill(store, "one")
        held = store.usage()
        assert (held.sessions, held.pending) == (1, 1)
        assert held.total_bytes == held.log_bytes + held.trajectory_bytes > 0
        store.ack("one", 1)
        assert store.usage().total_bytes == 0
    with MemoryStore(max_bytes=held.total_bytes) as store:
        fill(store, "one")
        log, trajectory = session("two")
        with pytest.raises(StoreFullError, match="max_bytes"):
            store.append("two", log[0])
        with pytest.raises(StoreFullError, match="max_bytes"):
            store.put(trajectory)
        assert store.sessions() == store.pending() == ["one"]
