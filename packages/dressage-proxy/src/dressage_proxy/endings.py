"""How a session ends: noted in its log first, then published; from then on memory keeps its counts alone."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from dressage_segments import Final, Trajectory, TrajectoryTree, final_to_record, finalize, tree_from_records
from dressage_store import NotFoundError, StoreError

from dressage_proxy.metrics import Metrics
from dressage_proxy.pipeline import Pipeline
from dressage_proxy.session import Session, State, Summary
from dressage_proxy.store import Store

EXPIRED = "expired"
"""In the outcome of a session that ended by itself."""
log = logging.getLogger("dressage.proxy")


@dataclass(frozen=True, slots=True)
class Endings:
    """Ends sessions, each in two steps of which a crash or a full disk may keep the second."""

    store: Store
    pipeline: Pipeline
    metrics: Metrics

    def note(self, session: Session, final: Final) -> None:
        """Log how a session ended; where that fails it goes on."""
        try:
            self.store.append(session.id, final_to_record(final))
        except BaseException:
            session.ending = False
            raise
        session.ended_as = final

    def publish(self, session: Session) -> Summary:
        """Publish the trajectory of a session whose end is noted. Raises what the store raises: it may be
        tried again."""
        assert session.ended_as is not None, "its end was not noted"
        trajectory = finalize(self._whole_tree(session), session.ended_as)
        self.store.put(trajectory)
        self.metrics.trained_tokens.inc(trajectory.trained_tokens)
        for cause, tokens in trajectory.lost_tokens.items():
            self.metrics.lost_tokens.labels(cause).inc(tokens)
        return self._finished(session, trajectory)

    def recover(self, session: Session, final: Final) -> None:
        """A session whose end was noted before the process ended: its trajectory is as it was, or is
        published now. Where it cannot be, it is tried again later: that must not keep the others away."""
        session.ending, session.ended_as = True, final
        try:
            trajectory = self.store.read(session.id)
        except NotFoundError:
            try:
                self.publish(session)
            except (OSError, StoreError) as error:
                log.error("session %s has ended and could not be stored: %s", session.id, error)  # noqa: TRY400
        else:
            self._finished(session, trajectory)

    def _whole_tree(self, session: Session) -> TrajectoryTree:
        """The tree with its routed experts, which are in the log alone."""
        return tree_from_records(self.store.records(session.id)) if session.covered else session.tree

    def _finished(self, session: Session, trajectory: Trajectory) -> Summary:
        """From here on the store holds the trajectory: memory keeps the counts alone."""
        session.final = Summary(
            trajectory.generation,
            len(trajectory.segments),
            len(session.tree),
            trajectory.sampled_tokens,
            trajectory.trained_tokens,
            trajectory.lost_tokens,
            session.branches,
            trajectory.outcome.get(EXPIRED) is True,
            trajectory.failure_class,
        )
        session.state = State.FINALIZED
        self.pipeline.forget(session.id)
        session.forget_conversation()
        return session.final
