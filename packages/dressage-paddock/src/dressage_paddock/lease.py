"""What one rollout holds of the outside: a recording session and its sandboxes. All always end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from dressage_sandbox.protocol import Sandbox, SandboxProvider, SandboxSpec

from dressage_paddock.errors import (
    GatewayError,
    GatewayRefusedError,
    InfrastructureError,
    RolloutStateError,
    SandboxFailedError,
)
from dressage_paddock.gateway import GatewaySession, ModelGateway
from dressage_paddock.result import FinalizeInfo
from dressage_paddock.waiting import settled, uninterrupted

_LOG = logging.getLogger(__name__)

TERMINATE_ATTEMPTS = 5
FINALIZE_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """What the recording session is opened with."""

    instance_id: str
    group_id: str | None
    rollout_id: str
    sampling: Mapping[str, Any] | None
    limits: Mapping[str, Any] | None
    labels: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """How the recording session ends: finalised, or dropped where ``failure_class`` is None."""

    failure_class: str | None = None
    outcome: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Released:
    """What ending the lease gave: the recorder's account, and what went wrong."""

    finalize: FinalizeInfo | None
    session_error: Exception | None
    sandbox_error: Exception | None


class LeaseBook:
    """The leases that a paddock has not ended yet, and the clean-ups that go on behind."""

    def __init__(self) -> None:
        self._leases: set[Lease] = set()
        self._behind: set[asyncio.Task[Any]] = set()

    @property
    def live(self) -> int:
        """Leases not ended, and clean-ups that still run."""
        return len(self._leases) + len(self._behind)

    def enter(self, lease: Lease) -> None:
        """Count ``lease`` until :meth:`leave`."""
        self._leases.add(lease)

    def leave(self, lease: Lease) -> None:
        """``lease`` has ended, but for what was given to :meth:`keep`."""
        self._leases.discard(lease)

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Hold a clean-up that takes too long, until it is done."""
        self._behind.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._behind.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("a late clean-up failed: %s", error)

    async def drained(self, timeout_s: float) -> bool:
        """Wait for the clean-ups that go on behind. Whether all ended in time."""
        if self._behind:
            await asyncio.wait(set(self._behind), timeout=timeout_s)
        return not self._behind


@dataclass(slots=True)
class _Held:
    """A sandbox that was asked for: the task that makes it, and the one that ends it."""

    creating: asyncio.Task[Sandbox]
    ending: asyncio.Task[None] | None = None

    @property
    def settled(self) -> bool:
        """Whether its end was begun and did not fail."""
        task = self.ending
        return task is not None and not (task.done() and (task.cancelled() or task.exception() is not None))


class Lease:
    """Acquires a session, then sandboxes, and ends all, also when cancelled while it acquires them.

    Opening and creating run in tasks of their own: an id that comes back after the rollout was cancelled is
    not lost but ended. ``release`` takes at most twice ``cleanup_s``; what has not ended by then goes on in
    the background, in a task that the ``book`` keeps.
    """

    def __init__(
        self,
        provider: SandboxProvider,
        gateway: ModelGateway,
        *,
        cleanup_s: float,
        book: LeaseBook,
    ) -> None:
        self._provider = provider
        self._gateway = gateway
        self._cleanup_s = cleanup_s
        self._book = book
        self._opening: asyncio.Task[Any] | None = None
        self._held: list[_Held] = []
        self._released = False

    async def open_session(self, request: SessionRequest) -> GatewaySession:
        """Open the recording session.

        Raises :class:`GatewayRefusedError` where the gateway's error has a ``status`` of 4xx (but 408 and
        429), else :class:`GatewayError`.
        """
        self._book.enter(self)
        self._opening = asyncio.create_task(self._open(request))
        try:
            opened = await asyncio.shield(self._opening)
        except Exception as error:
            status = getattr(error, "status", 0)
            refused = isinstance(status, int) and 400 <= status < 500 and status not in (408, 429)
            kind = GatewayRefusedError if refused else GatewayError
            raise kind(f"no recording session could be opened: {error}") from error
        return GatewaySession(str(opened.session_id), str(opened.openai_url), str(opened.anthropic_url))

    async def _open(self, request: SessionRequest) -> Any:
        return await self._gateway.open(
            instance_id=request.instance_id,
            group_id=request.group_id,
            rollout_id=request.rollout_id,
            sampling=request.sampling,
            limits=request.limits,
            labels=request.labels,
        )

    async def create_sandbox(self, spec: SandboxSpec) -> Sandbox:
        """Create a sandbox.

        Raises what the provider raises, and :class:`RolloutStateError` once the lease is being ended: nobody
        would end this one.
        """
        if self._released:
            raise RolloutStateError("the rollout has ended: no sandbox can be made for it any more")
        held = _Held(asyncio.create_task(self._create(spec)))
        self._held.append(held)
        return await asyncio.shield(held.creating)

    async def _create(self, spec: SandboxSpec) -> Sandbox:
        return await self._provider.create(spec)

    async def end_sandboxes(self) -> Exception | None:
        """End every sandbox made so far, within ``cleanup_s``; what went wrong, if anything did.

        Cancelled, it leaves the rest to :meth:`release`.
        """
        _, error = await self._bounded(self._ends(), "ending the sandbox")
        return error

    async def release(self, end: SessionEnd) -> Released:
        """End the sandbox, then the session. Not interrupted by cancellation, which is raised afterwards."""
        return await uninterrupted(asyncio.create_task(self._release(end)))

    async def _release(self, end: SessionEnd) -> Released:
        self._released = True
        # The sandbox first: nothing inside may still call the model while the session is being closed.
        sandbox_error = await self.end_sandboxes()
        finalize, session_error = await self._bounded(self._end_session(end), "ending the session")
        self._book.leave(self)
        return Released(finalize, session_error, sandbox_error)

    async def _bounded(
        self, work: Coroutine[Any, Any, FinalizeInfo | None], what: str
    ) -> tuple[FinalizeInfo | None, Exception | None]:
        task = asyncio.create_task(work)
        try:
            await asyncio.wait({task}, timeout=self._cleanup_s)
        finally:
            if not task.done():
                self._book.keep(task)
        if not task.done():
            return None, InfrastructureError(f"{what} takes longer than {self._cleanup_s:g} s")
        if task.cancelled():
            return None, InfrastructureError(f"{what} was cancelled")
        error = task.exception()
        if error is None:
            return task.result(), None
        if not isinstance(error, Exception):
            raise error
        return None, error

    async def _ends(self) -> None:
        """Wait for the end of all, beginning it where none is under way; then raise the first failure."""
        for held in self._held:
            if not held.settled:
                held.ending = asyncio.create_task(_end(held.creating))
        ends = [held.ending for held in self._held if held.ending is not None]
        results = await asyncio.gather(*ends, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _end_session(self, end: SessionEnd) -> FinalizeInfo | None:
        if self._opening is None:
            return None
        # Not cancelled: a session that the gateway is about to open can be dropped only once its id is known.
        opened = await settled(self._opening)
        if opened is None:
            return None
        session_id = str(opened.session_id)
        if end.failure_class is None:
            await self._gateway.delete(session_id)
            return None
        try:
            return await self._finalize(session_id, end)
        except Exception as error:
            await self._gateway.delete(session_id)
            raise InfrastructureError(
                f"session {session_id} could not be finalised and was dropped"
            ) from error

    async def _finalize(self, session_id: str, end: SessionEnd) -> FinalizeInfo:
        for attempt in range(FINALIZE_ATTEMPTS):
            try:
                done = await self._gateway.finalize(
                    session_id, outcome=end.outcome, failure_class=end.failure_class
                )
            except Exception:  # whatever the gateway raises: finalize is idempotent
                if attempt == FINALIZE_ATTEMPTS - 1:
                    raise
                await asyncio.sleep(0.05 * 2.0**attempt)
            else:
                return FinalizeInfo(int(done.segments), int(done.trained_tokens), dict(done.lost_tokens))
        raise AssertionError("unreachable: the loop returns or raises")


async def _end(creating: asyncio.Task[Sandbox]) -> None:
    creating.cancel()  # no effect where it is done
    sandbox = await settled(creating)
    if sandbox is None:
        return
    for attempt in range(TERMINATE_ATTEMPTS):
        try:
            await sandbox.terminate()
        except Exception as error:
            if attempt == TERMINATE_ATTEMPTS - 1:
                raise SandboxFailedError(f"sandbox {sandbox.id} could not be ended") from error
            await asyncio.sleep(0.05 * 2.0**attempt)
        else:
            return
