"""The contract of a store as tests that any backend can run.

Subclass :class:`StoreContract` in a test module, give ``make_store``, and pytest collects the rest::

    class TestMyStore(StoreContract):
        def make_store(self):
            return MyStore(...)

Where what is stored outlives the object, also give ``reopen``. The errors are dressage_store's.
"""

# ruff: noqa: D102 - the tests' names are their sentences
from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Protocol

import numpy as np
from dressage_segments import (
    FailureClass,
    Final,
    InvalidFieldError,
    LogRecord,
    Mark,
    SegmentSink,
    SegmentSource,
    Trajectory,
    audit,
    final_to_record,
    finalize,
    record_to_bytes,
    trajectory_to_bytes,
    tree_from_records,
)
from dressage_segments.synthetic import SyntheticSession, random_session

from dressage_store.errors import (
    GenerationError,
    NotFoundError,
    SessionExistsError,
    SessionFinishedError,
    SessionIdError,
    StoreClosedError,
)


class Store(SegmentSink, SegmentSource, Protocol):
    """Both ends of a store."""


def session_of(name: str, turns: int = 4) -> tuple[list[LogRecord], Trajectory]:
    """A finished session's log and trajectory, of a shape that the name decides."""
    session = random_session(np.random.default_rng(sum(name.encode())), turns, name)
    final = Final(1, FailureClass.COMPLETED, {"reward": 1.0})
    return [*session.log, final_to_record(final)], finalize(session.tree, final)


@contextmanager
def refused(error: type[Exception], says: str) -> Iterator[None]:
    """Fail unless exactly this error comes, with a message that holds ``says``."""
    try:
        yield
    except error as caught:
        if says not in str(caught):
            raise AssertionError(f"{caught!r} does not say {says!r}") from caught
    else:
        raise AssertionError(f"{error.__name__} was not raised")


def same(left: list[LogRecord], right: list[LogRecord]) -> bool:
    """Whether two logs hold equal records."""
    return [record_to_bytes(a) for a in left] == [record_to_bytes(b) for b in right]


class StoreContract:
    """What every SegmentSink that is a SegmentSource does."""

    def make_store(self) -> Store:
        """A new, empty store."""
        raise NotImplementedError

    def reopen(self, store: Store) -> Store:
        """The same store after its process ended; by default it is simply used on."""
        return store

    def test_a_session_is_read_back_as_it_was_written(self) -> None:
        with closing(self.make_store()) as store:
            log, trajectory = session_of("one")
            for record in log:
                store.append("one", record)
            store.put(trajectory)
            assert same(list(store.records("one")), log)
            assert trajectory_to_bytes(store.read("one")) == trajectory_to_bytes(trajectory)
            assert audit(store.records("one"), store.read("one")).proven_tokens == trajectory.trained_tokens

    def test_a_session_survives_reopening_and_goes_on_where_it_was(self) -> None:
        log, trajectory = session_of("one")
        store = self.make_store()
        for record in log[:3]:
            store.append("one", record)
        with closing(self.reopen(store)) as store:
            assert len(tree_from_records(store.records("one"))) >= 1
            for record in log[3:]:
                store.append("one", record)
            store.put(trajectory)
            assert same(list(store.records("one")), log)

    def test_sessions_do_not_mix_however_their_records_interleave(self) -> None:
        with closing(self.make_store()) as store:
            logs = {name: session_of(name)[0] for name in ("a", "b", "c.d", "_e-", "-f")}
            for step in range(max(map(len, logs.values()))):
                for name, log in logs.items():
                    if step < len(log):
                        store.append(name, log[step])
            assert store.sessions() == sorted(logs)
            for name, log in logs.items():
                assert same(list(store.records(name)), log)

    def test_c47_rollouts_of_one_prompt_started_at_once_each_have_their_own_session(self) -> None:
        with closing(self.make_store()) as store:
            for number in range(8):
                session = SyntheticSession(f"rollout-{number}")
                session.turn([1, 2, 3], [number], keys=["the same prompt"])
                for record in session.log:
                    store.append(f"rollout-{number}", record)
            for number in range(8):
                (turn,) = tree_from_records(store.records(f"rollout-{number}")).turns
                assert turn.output_ids.tolist() == [number]

    def test_c47_a_missing_id_an_id_never_opened_and_an_id_opened_twice_are_refused(self) -> None:
        with closing(self.make_store()) as store:
            log, _ = session_of("one")
            with refused(SessionIdError, "session_id"):
                store.append("", log[0])
            with refused(NotFoundError, "open"):
                store.append("unknown", log[1])
            store.append("one", log[0])
            with refused(SessionExistsError, "one"):
                store.append("one", log[0])
            assert same(list(store.records("one")), log[:1])

    def test_c47_a_finished_id_is_never_used_again(self) -> None:
        with closing(self.make_store()) as store:
            log, trajectory = session_of("one")
            store.append("one", log[0])
            store.put(trajectory)
            store.ack("one", 1)
            store.append("two", log[0])
            store.forget("two")
            for name in ("one", "two"):
                for record in log[:2]:
                    with refused(SessionFinishedError, name):
                        store.append(name, record)

    def test_ids_that_could_name_another_file_are_refused_everywhere(self) -> None:
        with closing(self.make_store()) as store:
            log, trajectory = session_of("one")
            for bad in ("../x", "a/b", ".", "..", ".hidden", "a\0", "a\n", "ä", "x" * 129, " "):
                with refused(SessionIdError, "session_id"):
                    store.append(bad, log[0])
                with refused(SessionIdError, "session_id"):
                    store.put(dataclasses.replace(trajectory, session_id=bad))
                for use in (store.records, store.read, store.forget):
                    with refused(SessionIdError, "session_id"):
                        use(bad)
                with refused(SessionIdError, "session_id"):
                    store.ack(bad, 1)
            assert store.sessions() == []

    def test_reading_removes_nothing_and_acking_removes_once(self) -> None:
        with closing(self.make_store()) as store:
            _, trajectory = session_of("one")
            store.put(trajectory)
            for _ in range(3):
                assert store.pending() == ["one"]
                assert store.read("one").generation == 1
            store.ack("one", 1)
            store.ack("one", 1)
            assert store.pending() == []
            with refused(NotFoundError, "acked"):
                store.read("one")

    def test_pending_is_in_the_order_of_publication(self) -> None:
        with closing(self.make_store()) as store:
            for name in ("z", "a", "m"):
                store.put(session_of(name)[1])
            store.ack("a", 1)
            assert store.pending() == ["z", "m"]

    def test_an_ack_of_another_generation_or_of_nothing_is_refused(self) -> None:
        with closing(self.make_store()) as store:
            with refused(NotFoundError, "one"):
                store.ack("one", 1)
            store.put(session_of("one")[1])
            with refused(GenerationError, "generation"):
                store.ack("one", 2)
            assert store.pending() == ["one"]

    def test_publishing_the_same_generation_again_changes_nothing_even_after_the_ack(self) -> None:
        with closing(self.make_store()) as store:
            _, trajectory = session_of("one")
            store.put(trajectory)
            store.put(dataclasses.replace(trajectory, outcome={"reward": 9}))
            assert store.read("one").outcome == {"reward": 1.0}
            store.ack("one", 1)
            store.put(trajectory)
            assert store.pending() == []

    def test_late_writes_of_an_older_generation_are_refused_and_a_newer_one_replaces(self) -> None:
        with closing(self.make_store()) as store:
            _, trajectory = session_of("one")
            newer = dataclasses.replace(trajectory, generation=3)
            store.put(dataclasses.replace(trajectory, generation=2))
            store.put(newer)
            with refused(GenerationError, "older"):
                store.put(trajectory)
            assert store.read("one").generation == 3
            assert store.pending() == ["one"]
            store.ack("one", 3)
            with refused(GenerationError, "acked"):
                store.put(dataclasses.replace(trajectory, generation=4))

    def test_acking_forgets_the_log_and_forgetting_does_not_touch_what_was_published(self) -> None:
        with closing(self.make_store()) as store:
            for name in ("one", "two"):
                log, trajectory = session_of(name)
                store.append(name, log[0])
                store.put(trajectory)
            store.ack("one", 1)
            store.forget("two")
            store.forget("never")
            assert store.sessions() == []
            assert store.pending() == ["two"]
            assert store.read("two").session_id == "two"

    def test_a_trajectory_that_breaks_its_contract_is_not_published(self) -> None:
        with closing(self.make_store()) as store:
            _, trajectory = session_of("one")
            segments = tuple(dataclasses.replace(s, anchor=False) for s in trajectory.segments)
            with refused(InvalidFieldError, "anchor"):
                store.put(dataclasses.replace(trajectory, segments=segments))
            assert store.pending() == []

    def test_a_dropped_session_takes_no_trajectory(self) -> None:
        with closing(self.make_store()) as store:
            log, trajectory = session_of("one")
            store.append("one", log[0])
            store.forget("one")
            with refused(SessionFinishedError, "dropped"):
                store.put(trajectory)

    def test_what_was_acked_or_dropped_stays_so_after_reopening(self) -> None:
        store = self.make_store()
        for name in ("acked", "dropped", "pending"):
            log, trajectory = session_of(name)
            store.append(name, log[0])
            if name != "dropped":
                store.put(trajectory)
        store.ack("acked", 1)
        store.forget("dropped")
        with closing(self.reopen(store)) as store:
            assert store.pending() == ["pending"]
            assert store.sessions() == ["pending"]
            store.ack("acked", 1)
            with refused(SessionFinishedError, "dropped"):
                store.append("dropped", session_of("dropped")[0][0])

    def test_what_is_stored_does_not_change_with_the_callers_arrays(self) -> None:
        with closing(self.make_store()) as store:
            session = SyntheticSession("one")
            session.turn([1, 2], [3])
            array = np.array([1, 2], np.int32)
            store.append("one", session.log[0])
            store.append("one", LogRecord("note", {"n": 1}, {"x": array}))
            array[0] = 99
            *_, record = store.records("one")
            assert record.arrays["x"].tolist() == [1, 2]
            assert record.meta == {"n": 1}

    def test_marks_and_records_of_other_kinds_keep_their_place(self) -> None:
        with closing(self.make_store()) as store:
            session = SyntheticSession("one")
            session.turn([1], [2])
            session.mark(0, Mark.DELIVERED)
            for record in session.log:
                store.append("one", record)
            assert [record.kind for record in store.records("one")] == ["open", "turn", "mark"]

    def test_a_closed_store_refuses_all_use_and_may_be_closed_again(self) -> None:
        store = self.make_store()
        log, trajectory = session_of("one")
        store.close()
        store.close()
        for use in (
            lambda: store.append("one", log[0]),
            lambda: store.put(trajectory),
            lambda: store.records("one"),
            lambda: store.read("one"),
            lambda: store.ack("one", 1),
            lambda: store.forget("one"),
            store.sessions,
            store.pending,
        ):
            with refused(StoreClosedError, "closed"):
                use()

    def test_it_is_a_sink_and_a_source(self) -> None:
        with closing(self.make_store()) as store:
            assert isinstance(store, SegmentSink)
            assert isinstance(store, SegmentSource)
