"""The sessions of one server: created once, found again, restored after a restart, ended."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping

from dressage_blackbox_server.adapter import AgentAdapter
from dressage_blackbox_server.agents import find_agent
from dressage_blackbox_server.errors import (
    JournalError,
    ServerFullError,
    SessionExistsError,
    UnknownSessionError,
)
from dressage_blackbox_server.executor import Executor
from dressage_blackbox_server.journal import Journal, JournalRecord
from dressage_blackbox_server.model import SessionConfig
from dressage_blackbox_server.session import AgentSession, restored_turns

ExecutorFactory = Callable[[SessionConfig], Executor]
"""Makes the executor of a session."""


class BlackboxService:
    """Many sessions behind one front: ``max_sessions`` kept, ``max_running`` turns running at once.

    Raises :class:`JournalError` where the journal of an earlier process cannot be read.
    """

    def __init__(
        self,
        executors: ExecutorFactory,
        agents: Mapping[str, AgentAdapter],
        journal: Journal,
        *,
        max_sessions: int = 256,
        max_running: int = 64,
    ) -> None:
        self._executors = executors
        self.agents = dict(agents)
        self._journal = journal
        self._max_sessions = max_sessions
        self._slots = asyncio.Semaphore(max_running)
        self._sessions: dict[str, AgentSession] = {}
        for session_id, records in journal.load().items():
            self._restore(session_id, records)

    def _restore(self, session_id: str, records: list[JournalRecord]) -> None:
        config = next((r.config for r in records if r.config is not None), None)
        if config is None:
            if records:
                raise JournalError(f"journal of session {session_id} does not begin with its configuration")
            self._journal.forget(session_id)  # cut before its first line was whole: nobody was answered
            return
        adapter = find_agent(config.agent, self.agents)
        turns = restored_turns([r.turn for r in records if r.turn is not None])
        self._sessions[session_id] = AgentSession(
            session_id,
            config,
            adapter,
            self._executors(config),
            journal=self._journal,
            slots=self._slots,
            turns=turns,
        )

    def create(self, config: SessionConfig, session_id: str | None = None) -> tuple[AgentSession, bool]:
        """A session, and whether it is new. The same id with the same configuration again finds it.

        Raises :class:`UnknownAgentError`, :class:`SessionExistsError`, :class:`ServerFullError` or
        :class:`JournalError`.
        """
        name = session_id or uuid.uuid4().hex
        known = self._sessions.get(name)
        if known is not None:
            if known.config != _as_named(config, known.config):
                raise SessionExistsError(f"session {name!r} exists with another configuration: use a new id")
            return known, False
        adapter = find_agent(config.agent, self.agents)
        if len(self._sessions) >= self._max_sessions:
            raise ServerFullError(f"{self._max_sessions} sessions are kept: delete some or allow more")
        self._journal.append(name, JournalRecord(config=config))
        session = AgentSession(
            name, config, adapter, self._executors(config), journal=self._journal, slots=self._slots
        )
        self._sessions[name] = session
        return session, True

    def get(self, session_id: str) -> AgentSession:
        """The session. Raises :class:`UnknownSessionError`."""
        try:
            return self._sessions[session_id]
        except KeyError:
            raise UnknownSessionError(
                f"no session {session_id!r}: it was never created, or deleted"
            ) from None

    async def delete(self, session_id: str) -> None:
        """End the session and forget it. Idempotent."""
        session = self._sessions.get(session_id)
        if session is None:
            return
        await session.close()
        self._journal.forget(session_id)
        self._sessions.pop(session_id, None)

    async def aclose(self) -> None:
        """End whatever runs. The journal stays, for the next process."""
        await asyncio.gather(*(session.close() for session in self._sessions.values()))


def _as_named(config: SessionConfig, known: SessionConfig) -> SessionConfig:
    """``config`` with the known one's uuid, unless it names one itself: what was drawn at random for an
    earlier request is no difference of what is asked for.
    """
    if "session_uuid" in config.model_fields_set:
        return config
    return config.model_copy(update={"session_uuid": known.session_uuid})
