"""One model call from request to committed reply: match, encode, sample, parse, commit."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from dressage_segments import Mark, Turn
from dressage_tito import ChatCodec, Message

from dressage_proxy.attempts import Attempt, Attempts, Known
from dressage_proxy.bodies import Bodies
from dressage_proxy.cachehits import expected_hit
from dressage_proxy.committing import Committer
from dressage_proxy.config import ProxyConfig
from dressage_proxy.dialects.base import ModelReply, ModelRequest
from dressage_proxy.echoes import turn_handle
from dressage_proxy.engine.idtexts import IdTexts, further
from dressage_proxy.engine.prompt import Prompt
from dressage_proxy.errors import ContextOverflowError, GoneError, HookError, OverloadedError, RequestError
from dressage_proxy.generation import Generator
from dressage_proxy.hooks import Hooks
from dressage_proxy.metrics import Metrics
from dressage_proxy.placing import Place, locate
from dressage_proxy.planning import Plan, plan
from dressage_proxy.replies import reasoning_tokens
from dressage_proxy.sampled import Reply
from dressage_proxy.sampling import Effective, context_window, effective, reply_cap
from dressage_proxy.session import Session, State
from dressage_proxy.surrogates import load_json

_RETRY_AFTER_S = 1.0
_BUSY_SESSIONS = 8
"""So many sessions with a reply in the making keep the event loop busy."""


@dataclass(slots=True)
class Pipeline:
    """Serves every session of this process. Used from one event loop."""

    config: ProxyConfig
    codec: ChatCodec
    committer: Committer
    generator: Generator
    metrics: Metrics
    hooks: Hooks = field(default_factory=Hooks)
    draining: bool = False
    """The proxy is being stopped: nothing new is begun."""
    attempts: Attempts = field(default_factory=Attempts)
    """Replies in the making."""
    texts: IdTexts = field(default_factory=IdTexts)
    bodies: Bodies = field(default_factory=Bodies)

    def join(self, session: Session, request: ModelRequest) -> Attempt:
        """The reply in the making to a request, with one more who waits for it. One that is new has its
        ``turn``: who gets it makes it. What it becomes is told by :meth:`made`; who does not wait for that
        says so by :meth:`leave`.

        Raises RequestError and its kinds.
        """
        if session.ending or session.state is not State.OPEN:
            raise GoneError(f"session {session.id} is finished: open a new one")
        place = locate(session, self.codec, request)
        asked = repr(sorted(request.asked.items()))
        question = (session.id, place.parent, place.tools_hash, place.keys, asked)
        attempt = self.attempts.find(question)
        if attempt is None:
            self._admit()
            self._check_limits(session)
            self._used(session)
            known = Known()
            turn = self._turn(session, request, place, known)
            attempt = self.attempts.begin(session.id, question, known, turn)
        attempt.waiters += 1
        return attempt

    def made(self, session: Session, attempt: Attempt) -> ModelReply:
        """The committed reply of an attempt that has ended. The caller reports its delivery by
        :meth:`delivered` or :meth:`leave`. Raises what kept it from being made: RequestError and its
        kinds."""
        if isinstance(attempt.outcome, ModelReply):
            return attempt.outcome
        attempt.waiters -= 1
        self._used(session)
        if isinstance(attempt.outcome, Exception):
            raise attempt.outcome
        if self.draining:
            raise _stopping()
        raise GoneError(f"session {session.id} ended while the reply was being made")

    def leave(self, session: Session, attempt: Attempt) -> None:
        """A client is gone that waited, or that its reply did not reach: with the last one, the engine call
        is aborted and the turn is recorded as undelivered."""
        attempt.waiters -= 1
        self._used(session)
        if attempt.waiters:
            return
        attempt.abandon()
        reply = attempt.outcome
        if isinstance(reply, ModelReply) and not attempt.delivered and session.state is State.OPEN:
            self.committer.undelivered(session, reply.turn)

    @staticmethod
    def _used(session: Session) -> None:
        """It is not idle: a call begins, or ends, also without a reply: it may have waited for long."""
        session.touched = asyncio.get_running_loop().time()

    def _admit(self) -> None:
        if self.draining:
            raise _stopping()
        if self.attempts.total >= self.config.max_in_flight:
            raise OverloadedError(
                f"{self.attempts.total} replies are in the making, the limit is {self.config.max_in_flight}",
                retry_after_s=_RETRY_AFTER_S,
            )

    def load(self, session: Session, data: bytes) -> tuple[Any, bool]:
        """The value of a request's body, and whether half a surrogate pair in it was replaced. Raises
        ValueError."""
        if session.ending or session.state is not State.OPEN:
            return load_json(data)
        return self.bodies.load(session.id, data)

    def said(self, session: Session, handle: str) -> Message | None:
        """What a turn of a session was returned as, by its handle; None where it is none of its turns."""
        return session.echoes.said(session.tree, self.codec, handle)

    def forget(self, session_id: str) -> None:
        """Keep nothing of a session that has ended."""
        self.texts.forget(session_id)
        self.bodies.forget(session_id)

    async def drain(self, timeout_s: float) -> int:
        """Begin nothing new, and wait for what is in the making. What has not ended in time is aborted and
        recorded as undelivered: how many replies that were."""
        self.draining = True
        return 0 if await self.attempts.wait(timeout_s) else await self.attempts.end_all()

    def delivered(self, attempt: Attempt) -> None:
        """A client has the reply."""
        attempt.waiters -= 1
        attempt.delivered = True

    async def _turn(self, session: Session, request: ModelRequest, place: Place, known: Known) -> ModelReply:
        if self.hooks:
            new = place.raw[place.matched :]
            await self.hooks.after(session.info, session.labels, session.hooked, new)
        with self.metrics.phase("encode"):
            busy = len(self.attempts.running) >= _BUSY_SESSIONS
            planned = await plan(session, self.codec, request, place, busy=busy)
        prompt, parent = self._written(session, planned), planned.place.parent
        known.prompt_tokens = len(prompt)
        sampling = self._sampling(session, request, planned)
        reply = Reply(experts_start=session.covered.get(planned.place.parent, 0))
        versions = session.versions.copy()
        hit = expected_hit(session.tree, planned)
        try:
            with self.metrics.sampling(lambda: reply.held_s):
                await self.generator.sample(session.id, prompt, sampling, reply, versions)
        except (asyncio.CancelledError, RequestError):
            if reply.sampled and session.state is State.OPEN:
                self.committer.commit(session, request, planned, sampling, reply, Mark.UNDELIVERED)
                self.metrics.cache(hit, len(prompt), reply.cached_tokens)
            raise
        if session.state is not State.OPEN:
            raise GoneError(f"session {session.id} is {session.state}")
        with self.metrics.phase("commit"):
            turn, message = self.committer.commit(session, request, planned, sampling, reply)
            self.texts.keep(session.id, parent, turn.index, further(prompt.text, turn.output_ids))
        self._used(session)
        self.metrics.cache(hit, len(prompt), reply.cached_tokens)
        if self.hooks:
            await self._tell_calls(session, turn, message)
        return ModelReply(
            message=message,
            finish_reason=_told_reason(reply.finish_reason, message),
            prompt_tokens=len(prompt),
            completion_tokens=reply.tokens,
            cached_tokens=reply.cached_tokens or 0,
            turn=turn.index,
            warnings=tuple(turn.extra.get("warnings", ())),
            reasoning_tokens=reasoning_tokens(self.codec, reply.ids, message),
            handle=turn_handle(session.id, turn.index),
            stop_sequence=reply.matched if isinstance(reply.matched, str) else "",
        )

    def _written(self, session: Session, planned: Plan) -> Prompt:
        """The prompt with its JSON, of which only what is new is written."""
        prompt = planned.prompt
        walk = self.texts.walk(session.id, planned.place.parent)
        return prompt.written(prompt.json() if walk is None else further(walk, prompt.new))

    async def count(self, session: Session, request: ModelRequest) -> int:
        """The tokens of a request's prompt; nothing is sampled or kept."""
        self._used(session)
        place = locate(session, self.codec, request, counting=True)
        return len((await plan(session, self.codec, request, place)).prompt)

    async def _tell_calls(self, session: Session, turn: Turn, message: Message) -> None:
        """Tell the hooks before the reply is released; where one fails, the reply is not."""
        try:
            await self.hooks.before(session.info, session.labels, session.hooked, message.tool_calls)
        except (HookError, asyncio.CancelledError):
            if session.state is State.OPEN:
                self.committer.undelivered(session, turn.index)
            raise

    def _check_limits(self, session: Session) -> None:
        limits, tree = session.limits, session.tree
        steps = len(tree) + self.attempts.of(session.id)
        if limits.max_steps is not None and steps >= limits.max_steps:
            raise RequestError(
                f"the session's {limits.max_steps} steps are used up", code="max_steps_reached"
            )
        self._tokens_left(session)

    def _tokens_left(self, session: Session) -> int | None:
        limit = session.limits.max_total_tokens
        if limit is None:
            return None
        left = limit - session.tree.sampled_tokens
        if left < 1:
            raise RequestError(
                f"the session's {limit} sampled tokens are used up", code="max_total_tokens_reached"
            )
        return left

    def _sampling(self, session: Session, request: ModelRequest, planned: Plan) -> Effective:
        window = context_window(self.config, session.limits)
        room = window - len(planned.prompt)
        if room < 1:
            raise ContextOverflowError.of(len(planned.prompt), window)
        cap = min(room, reply_cap(self.config, session.limits))
        left = self._tokens_left(session)
        if left is not None:
            cap = min(cap, left)
        return effective(session.sampling, request.asked, cap)


def _stopping() -> OverloadedError:
    return OverloadedError(
        "the proxy is being stopped", code="draining", status=503, retry_after_s=_RETRY_AFTER_S
    )


def _told_reason(finish_reason: str, message: Message) -> str:
    """``tool_calls`` only for a turn that ended by itself: a cut turn stays ``length``."""
    return "tool_calls" if finish_reason == "stop" and message.tool_calls else finish_reason
