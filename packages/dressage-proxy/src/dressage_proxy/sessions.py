"""All sessions of this process: opening, finding, ending, and resuming them from the turn log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from dressage_segments import (
    BufferFormatError,
    FailureClass,
    Final,
    LogRecord,
    SegmentsError,
    SessionInfo,
    Trajectory,
    TrajectoryTree,
    final_from_record,
    tree_from_records,
)
from dressage_store import CorruptStoreError, FilesStore, StoreError, StoreFullError
from dressage_store import NotFoundError as NotStoredError
from dressage_store import State as EntryState
from dressage_tito import ThinkingPolicy
from pydantic import ValidationError

from dressage_proxy.config import Limits, ProxyConfig, Sampling
from dressage_proxy.controller import Controller
from dressage_proxy.endings import EXPIRED, Endings
from dressage_proxy.errors import ConflictError, GoneError, NotFoundError, RequestError
from dressage_proxy.metrics import Metrics
from dressage_proxy.opening import Opened, lower
from dressage_proxy.pipeline import Pipeline
from dressage_proxy.session import Session, State, Summary
from dressage_proxy.session_ids import new_session_id
from dressage_proxy.store import Store

log = logging.getLogger("dressage.proxy")
_GENERATION = 1
_ENDED = {EntryState.ACKED: State.FINALIZED, EntryState.DROPPED: State.DELETED}


class Sessions:
    """The registry. Finished sessions are remembered by id, so that they answer 410 and not 404."""

    def __init__(
        self,
        config: ProxyConfig,
        store: Store,
        pipeline: Pipeline,
        controller: Controller,
        metrics: Metrics,
    ) -> None:
        self._config = config
        self._store = store
        self._pipeline = pipeline
        self._controller = controller
        self._metrics = metrics
        self._endings = Endings(store, pipeline, metrics)
        self._sessions: dict[str, Session] = {}
        self._ended: dict[str, State] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._sessions

    def open(
        self,
        info: SessionInfo,
        *,
        sampling: Sampling,
        limits: Limits,
        labels: Mapping[str, str],
        thinking: ThinkingPolicy = "keep",
    ) -> Session:
        """A new session under an unguessable id; ``info.session_id`` is ignored. Logged before it returns.

        Raises RequestError while the proxy is full or being stopped."""
        if self._pipeline.draining:  # it would take no call
            raise RequestError(
                "the proxy is being stopped",
                code="draining",
                status=503,
                fix="ask again once it runs",
                retry_after_s=1,
            )
        if len(self._sessions) >= self._config.max_sessions:
            raise RequestError(
                f"{len(self._sessions)} sessions are open, the limit is {self._config.max_sessions}",
                code="too_many_sessions",
                status=503,
                fix="finalize and ack sessions, or start with a higher --max-sessions",
                retry_after_s=1,
            )
        session_id = new_session_id(self._config.shard, self._config.shards)
        info = SessionInfo(session_id, info.instance_id, info.group_id, info.rollout_id or session_id)
        opened = Opened(sampling, limits, dict(labels), thinking)
        self._store.append(session_id, opened.record(info))
        session = opened.session(TrajectoryTree(info), self._config)
        self._sessions[session_id] = session
        self._metrics.sessions.set(len(self._sessions))
        return session

    def find(self, session_id: str) -> Session:
        """A session in memory, whatever its state. Raises NotFoundError, or GoneError for one that was
        acked or deleted."""
        session = self._sessions.get(session_id)
        if session is not None:
            return session
        ended = self._ended.get(session_id)
        if ended is not None:
            raise GoneError(f"session {session_id} is {ended}: open a new one", code="session_finished")
        raise NotFoundError(f"no session {session_id}", code="session_not_found", fix="POST /sessions first")

    def live(self, session_id: str) -> Session:
        """A session that takes model calls. Raises NotFoundError, GoneError."""
        session = self.find(session_id)
        if session.ending or session.state is not State.OPEN:
            if session.final is not None and session.final.expired:
                raise GoneError(
                    f"session {session_id} expired: it was idle for too long, its trajectory is in the store",
                    code="session_expired",
                    fix="open a new one",
                )
            state = "being ended" if session.state is State.OPEN else session.state
            raise GoneError(f"session {session_id} is {state}: open a new one")
        return session

    async def finalize(
        self, session_id: str, outcome: Mapping[str, Any] | None, failure_class: FailureClass | None
    ) -> Summary:
        """End a session and publish its trajectory. Again: the same answer, whatever is asked then; an end
        that differs from the first is said in the log."""
        session = self.find(session_id)
        if session.final is None:
            session.ending = True
            await self._pipeline.attempts.end(session.id)
        if session.state is State.DELETED:
            raise GoneError(f"session {session_id} was deleted")
        if otherwise := session.ends_otherwise(outcome, failure_class):
            log.warning("session %s is finalised again: %s", session_id, otherwise)
        if session.final is not None:  # before, or by another finalize that was quicker
            return session.final
        if session.ended_as is None:
            final = Final(_GENERATION, failure_class or FailureClass.COMPLETED, dict(outcome or {}))
            self._endings.note(session, final)
        return self._endings.publish(session)

    def trajectory(self, session_id: str) -> Trajectory:
        """The published trajectory. Raises ConflictError while the session is open."""
        self._summary(session_id)
        return self._store.read(session_id)

    def _summary(self, session_id: str) -> Summary:
        session = self.find(session_id)
        if session.final is None:
            raise ConflictError(
                f"session {session_id} is open", code="session_open", fix="POST /sessions/{id}/finalize first"
            )
        return session.final

    def ack(self, session_id: str, generation: int) -> None:
        """Forget a read trajectory. A second ack is a no-op; a wrong generation is refused."""
        if self._ended.get(session_id) is State.FINALIZED:
            return
        summary = self._summary(session_id)
        if generation != summary.generation:
            raise ConflictError(
                f"generation is {summary.generation}, not {generation}",
                field="generation",
                code="wrong_generation",
                fix="read the segments again and ack the generation of their ETag",
            )
        self._store.ack(session_id, generation)
        self._drop(session_id, State.FINALIZED)

    async def delete(self, session_id: str) -> None:
        """Abort what runs and drop the session; its tokens are counted as lost. Again: nothing more."""
        if self._ended.get(session_id) is State.DELETED:
            return
        session = self.find(session_id)
        session.ending = True
        await self._pipeline.attempts.end(session.id)
        if self._ended.get(session_id) is State.DELETED:  # by another request that was quicker
            return
        session = self.find(session_id)
        if session.state is not State.DELETED:  # else it was, and could not be taken out of the store
            final = session.final
            tokens = session.tree.sampled_tokens if final is None else final.sampled_tokens
            self._store.append(session_id, LogRecord("deleted", {"sampled_tokens": tokens}))
            session.state = State.DELETED
            if final is None:
                self._metrics.lost_tokens.labels("deleted").inc(tokens)
        self._discard(session_id)
        self._drop(session_id, State.DELETED)

    def _discard(self, session_id: str) -> None:
        """Take a deleted session out of the store, and its trajectory where one was published."""
        try:
            self._store.ack(session_id, self._store.read(session_id).generation)
        except NotStoredError:
            self._store.forget(session_id)

    async def expire(self) -> int:
        """End what was idle for longer than it may be: it is published as a timeout, and takes no more calls.
        Returns how many were ended; one that cannot be stored stays as it is, and keeps no other from it.
        What ended before and could not be published is tried again."""
        expired = 0
        for session in list(self._sessions.values()):
            if self._sessions.get(session.id) is not session:
                continue  # it was dropped meanwhile
            try:
                if session.unpublished:
                    summary = self._endings.publish(session)
                elif self._idle(session):
                    summary = await self.finalize(session.id, {EXPIRED: True}, FailureClass.TIMEOUT)
                else:
                    continue
            except (OSError, StoreError, SegmentsError) as error:
                log.error("session %s has ended and could not be stored: %s", session.id, error)  # noqa: TRY400
                continue
            if summary.expired:
                self._metrics.expired.inc()
                expired += 1
            await asyncio.sleep(0)  # thousands may end at once, and others are to be answered meanwhile
        return expired

    def _idle(self, session: Session) -> bool:
        limit = lower(self._config.idle_timeout_s, session.limits.idle_timeout_s)
        if limit is None or session.ending or session.state is not State.OPEN:
            return False
        now = asyncio.get_running_loop().time()
        return now - session.touched > limit and not self._pipeline.attempts.of(session.id)

    def _drop(self, session_id: str, state: State) -> None:
        self._sessions.pop(session_id, None)
        self._ended[session_id] = state
        self._controller.forget(session_id)
        self._pipeline.forget(session_id)
        self._metrics.sessions.set(len(self._sessions))

    def recover(self) -> int:
        """Resume every session that the store still has. Returns how many."""
        if isinstance(self._store, FilesStore):
            for entry in self._store.entries():
                if entry.state is not EntryState.PENDING:
                    self._ended[entry.session_id] = _ENDED[entry.state]
        for session_id in self._store.sessions():
            try:
                self._resume(session_id, list(self._store.records(session_id)))
            except (SegmentsError, CorruptStoreError, ValidationError) as error:
                # One damaged session keeps no other from going on.
                log.error("session %s is damaged and was left alone: %s", session_id, error)  # noqa: TRY400
                self._ended[session_id] = State.DAMAGED
        self._metrics.sessions.set(len(self._sessions))
        return len(self._sessions)

    def _resume(self, session_id: str, records: list[LogRecord]) -> None:
        if any(record.kind == "deleted" for record in records):
            self._ended[session_id] = State.DELETED
            try:
                self._discard(session_id)
            except StoreFullError as error:  # what is left of it is taken out at the next start
                log.error("session %s was deleted and is still there: %s", session_id, error)  # noqa: TRY400
            return
        tree = tree_from_records(records)
        session = Opened.of(records[0]).session(tree, self._config)
        if session.id != session_id:
            raise BufferFormatError(f"its log is that of session {session.id!r}")
        for turn in tree.turns:
            session.remember(turn)
        for record in records:
            if record.kind == "final":
                self._endings.recover(session, final_from_record(record))
        session.tree.drop_experts()
        self._sessions[session.id] = session
