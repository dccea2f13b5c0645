"""One model call from request to committed reply: match, encode, sample, parse, commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from dressage_segments import ROOT, Mark, SegmentSink, Turn, mark_to_record, turn_to_record
from dressage_tito import ChatCodec, Message, ParsedTurn, ToolCall

from dressage_proxy.cachehits import expected_hit
from dressage_proxy.canonical import message_key
from dressage_proxy.config import ProxyConfig
from dressage_proxy.dialects.base import ModelReply, ModelRequest, as_sent_back
from dressage_proxy.echoes import turn_handle
from dressage_proxy.errors import ContextOverflowError, GoneError, HookError, OverloadedError, RequestError
from dressage_proxy.generation import Generator, Reply
from dressage_proxy.hooks import Hooks
from dressage_proxy.metrics import Metrics
from dressage_proxy.planning import Place, Plan, locate, plan
from dressage_proxy.replies import reasoning_tokens
from dressage_proxy.sampling import Effective, context_window, effective, reply_cap
from dressage_proxy.session import Session, State

_RETRY_AFTER_S = 1.0
_BUSY_SESSIONS = 8
"""So many sessions with a reply in the making keep the event loop busy."""


@dataclass(slots=True)
class Known:
    """What can be told of a reply before it is made."""

    prompt_tokens: int = 0
    """0 while the prompt is being encoded."""


@dataclass(slots=True, eq=False)
class Attempt:
    """A reply in the making, and how many clients wait for it (a retry joins the one in flight)."""

    task: asyncio.Task[ModelReply]
    known: Known
    waiters: int = 0
    delivered: bool = False
    abandoned: bool = False
    """It is being aborted: a retry does not join it any more, but starts afresh."""

    def abandon(self) -> None:
        """Abort it, once: a second cancellation would cut off the account of what it sampled."""
        if not self.abandoned and not self.task.done():
            self.abandoned = True
            self.task.cancel()


@dataclass(slots=True)
class Pipeline:
    """Serves every session of this process. Used from one event loop."""

    config: ProxyConfig
    codec: ChatCodec
    sink: SegmentSink
    generator: Generator
    metrics: Metrics
    hooks: Hooks = field(default_factory=Hooks)
    draining: bool = False
    """The proxy is being stopped: nothing new is begun."""
    total: int = 0
    """Replies in the making, of all sessions."""
    _attempts: dict[tuple[object, ...], Attempt] = field(default_factory=dict)
    """What a retry may join, by what was asked."""
    _running: dict[str, set[Attempt]] = field(default_factory=dict)
    """Every reply in the making, by session."""

    async def answer(
        self, session: Session, request: ModelRequest, joined: Callable[[Attempt], None] | None = None
    ) -> tuple[Attempt, ModelReply]:
        """The committed reply to a request. Cancel it when the client is gone: with the last client that
        waited, the engine call is aborted and the turn is recorded as undelivered.

        ``joined`` is told the attempt before it is waited for.
        Raises RequestError and its kinds. The caller reports delivery by :meth:`delivered` or :meth:`lost`.
        """
        if session.ending or session.state is not State.OPEN:
            raise GoneError(f"session {session.id} is finished: open a new one")
        place = locate(session, self.codec, request)
        attempt = self._join(session, request, place)
        attempt.waiters += 1
        if joined is not None:
            joined(attempt)
        try:
            reply = await asyncio.shield(attempt.task)
        except asyncio.CancelledError:
            attempt.waiters -= 1
            if attempt.task.cancelled():
                raise GoneError(f"session {session.id} ended while the reply was being made") from None
            if not attempt.waiters:
                await self._unwanted(session, attempt)
            raise
        except BaseException:
            attempt.waiters -= 1
            raise
        return attempt, reply

    async def _unwanted(self, session: Session, attempt: Attempt) -> None:
        """The last client that waited is gone."""
        if not attempt.task.done():
            attempt.abandon()
            await asyncio.wait({attempt.task})
        elif attempt.task.exception() is None:
            self._unseen(session, attempt, attempt.task.result())

    def _join(self, session: Session, request: ModelRequest, place: Place) -> Attempt:
        identity = (
            session.id,
            place.parent,
            place.tools_hash,
            place.keys,
            repr(sorted(request.asked.items())),
        )
        attempt = self._attempts.get(identity)
        if attempt is None or attempt.abandoned or attempt.task.done():
            self._admit()
            self._check_limits(session)
            session.touched = asyncio.get_running_loop().time()
            known = Known()
            task = asyncio.create_task(self._turn(session, request, place, known))
            attempt = Attempt(task, known)
            self._attempts[identity] = attempt
            self.total += 1
            self._running.setdefault(session.id, set()).add(attempt)
            task.add_done_callback(self._ended(session.id, identity, attempt))
        return attempt

    def _admit(self) -> None:
        if self.draining:
            raise OverloadedError(
                "the proxy is being stopped", code="draining", status=503, retry_after_s=_RETRY_AFTER_S
            )
        if self.total >= self.config.max_in_flight:
            raise OverloadedError(
                f"{self.total} replies are in the making, the limit is {self.config.max_in_flight}",
                retry_after_s=_RETRY_AFTER_S,
            )

    async def drain(self, timeout_s: float) -> bool:
        """Begin nothing new, and wait for what is in the making; whether all ended in time."""
        self.draining = True
        tasks = [attempt.task for running in self._running.values() for attempt in running]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        return not self.total

    def _ended(
        self, session_id: str, identity: tuple[object, ...], attempt: Attempt
    ) -> Callable[[asyncio.Task[ModelReply]], None]:
        def forget(task: asyncio.Task[ModelReply]) -> None:
            if self._attempts.get(identity) is attempt:
                del self._attempts[identity]
            self.total -= 1
            running = self._running[session_id]
            running.discard(attempt)
            if not running:
                del self._running[session_id]
            if not task.cancelled():
                task.exception()  # retrieved: each waiter was given it

        return forget

    def delivered(self, attempt: Attempt) -> None:
        """A client has the reply."""
        attempt.waiters -= 1
        attempt.delivered = True

    def lost(self, session: Session, attempt: Attempt, reply: ModelReply) -> None:
        """A client was gone before its reply was released; the last one makes the turn undelivered."""
        attempt.waiters -= 1
        self._unseen(session, attempt, reply)

    def _unseen(self, session: Session, attempt: Attempt, reply: ModelReply) -> None:
        if attempt.waiters <= 0 and not attempt.delivered and session.state is State.OPEN:
            self._mark_undelivered(session, reply.turn)

    def _mark_undelivered(self, session: Session, turn: int) -> None:
        self.sink.append(session.id, mark_to_record(turn, Mark.UNDELIVERED))
        self._marked(session, turn, Mark.UNDELIVERED)

    def _marked(self, session: Session, turn: int, mark: Mark) -> None:
        session.tree.mark(turn, mark)
        if mark is Mark.UNDELIVERED:
            self.metrics.undelivered.inc()

    async def end_attempts(self, session: Session) -> None:
        """Abort every reply in the making of a session; each is recorded as undelivered."""
        attempts = list(self._running.get(session.id, ()))
        for attempt in attempts:
            attempt.abandon()
        if attempts:
            await asyncio.wait([attempt.task for attempt in attempts])

    def in_flight(self, session_id: str) -> int:
        """Replies in the making of a session."""
        return len(self._running.get(session_id, ()))

    async def _turn(self, session: Session, request: ModelRequest, place: Place, known: Known) -> ModelReply:
        if self.hooks:
            new = place.raw[place.matched :]
            await self.hooks.after(session.info, session.labels, session.hooked, new)
        with self.metrics.phase("encode"):
            busy = len(self._running) >= _BUSY_SESSIONS
            planned = await plan(session, self.codec, request, place, busy=busy)
        known.prompt_tokens = len(planned.prompt.ids)
        sampling = self._sampling(session, request, planned)
        reply = Reply(experts_start=session.covered.get(planned.place.parent, 0))
        versions = session.versions.copy()
        hit = expected_hit(session.tree, planned)
        try:
            with self.metrics.phase("engine"):
                await self.generator.sample(session.id, planned.prompt, sampling, reply, versions)
        except (asyncio.CancelledError, RequestError):
            if reply.sampled and session.state is State.OPEN:
                self._commit(session, request, planned, sampling, reply, Mark.UNDELIVERED)
            raise
        if session.state is not State.OPEN:
            raise GoneError(f"session {session.id} is {session.state}")
        with self.metrics.phase("commit"):
            turn, message = self._commit(session, request, planned, sampling, reply)
        session.touched = asyncio.get_running_loop().time()
        self.metrics.cache(
            hit, len(planned.prompt.ids), reply.pieces[0].cached_tokens if reply.pieces else None
        )
        if self.hooks:
            await self._tell_calls(session, turn, message)
        return ModelReply(
            message=message,
            finish_reason=_told_reason(reply.finish_reason, message),
            prompt_tokens=len(planned.prompt.ids),
            completion_tokens=reply.tokens,
            cached_tokens=reply.pieces[0].cached_tokens or 0 if reply.pieces else 0,
            turn=turn.index,
            warnings=tuple(turn.extra.get("warnings", ())),
            reasoning_tokens=reasoning_tokens(self.codec, reply.ids, message),
            handle=turn_handle(session.id, turn.index),
            stop_sequence=reply.matched if isinstance(reply.matched, str) else "",
        )

    async def count(self, session: Session, request: ModelRequest) -> int:
        """The tokens of a request's prompt; nothing is sampled or kept."""
        session.touched = asyncio.get_running_loop().time()
        place = locate(session, self.codec, request, counting=True)
        return len((await plan(session, self.codec, request, place)).prompt.ids)

    async def _tell_calls(self, session: Session, turn: Turn, message: Message) -> None:
        """Tell the hooks before the reply is released; where one fails, the reply is not."""
        try:
            await self.hooks.before(session.info, session.labels, session.hooked, message.tool_calls)
        except (HookError, asyncio.CancelledError):
            if session.state is State.OPEN:
                self._mark_undelivered(session, turn.index)
            raise

    def _check_limits(self, session: Session) -> None:
        limits, tree = session.limits, session.tree
        steps = len(tree) + self.in_flight(session.id)
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
        room = window - len(planned.prompt.ids)
        if room < 1:
            raise ContextOverflowError.of(len(planned.prompt.ids), window)
        cap = min(room, reply_cap(self.config, session.limits))
        left = self._tokens_left(session)
        if left is not None:
            cap = min(cap, left)
        return effective(session.sampling, request.asked, cap)

    def _commit(
        self,
        session: Session,
        request: ModelRequest,
        planned: Plan,
        sampling: Effective,
        reply: Reply,
        mark: Mark | None = None,
    ) -> tuple[Turn, Message]:
        """Parse, then log the turn durably with its mark, then put it into the tree."""
        ids = reply.ids
        parsed = self.codec.parse(
            ids,
            reasoning_open=planned.reasoning_open,
            finish_reason=reply.finish_reason,
            tools=request.tools or None,
        )
        message, wire_ids = self._message(session, parsed, reply)
        extra: dict[str, object] = {"reasoning_open": planned.reasoning_open}
        optional = {
            "wire_ids": wire_ids,
            "system_key": planned.system_key,
            "overridden": dict(sampling.overridden),
            "flags": list(planned.place.flags),
            "accepted": sorted(request.accepted) if planned.place.parent == ROOT else [],
            "copied": planned.copied,
            "rendered": planned.rendered,
            "noted": planned.noted,
            "joined": planned.joined,
            "warnings": list(parsed.warnings),
            "pinned": dict(session.pinned) if planned.place.parent == ROOT else {},
        }
        extra |= {name: value for name, value in optional.items() if value}
        turn = Turn(
            session_id=session.id,
            index=len(session.tree),
            parent=planned.place.parent,
            kind=planned.kind,
            cut_reason=planned.place.cut_reason,
            delta_ids=planned.delta_ids,
            delta_origin=planned.delta_origin,
            output_ids=ids,
            logprobs=reply.logprobs,
            versions=reply.versions,
            calls=tuple(reply.calls),
            finish_reason=reply.finish_reason,
            tools_hash=planned.place.tools_hash,
            input_keys=planned.place.new_keys,
            reply_key=message_key(as_sent_back(message, request.wire_tools)),
            sampling=dict(sampling.recorded),
            extra=extra,
            experts=reply.experts,
            experts_start=reply.experts_start,
        )
        self.sink.append(session.id, turn_to_record(turn, mark))
        # The log alone keeps experts: they are many times what all else of a turn takes.
        session.tree.add(turn if turn.experts is None else replace(turn, experts=None))
        if mark is not None:
            self._marked(session, turn.index, mark)
        session.remember(turn)
        for broken in planned.broken:
            if not session.tree.children(broken) and session.tree.marked(broken) is None:
                self._mark_undelivered(session, broken)
        self.metrics.sampled_tokens.inc(turn.sampled_tokens)
        return turn, message

    def _message(self, session: Session, parsed: ParsedTurn, reply: Reply) -> tuple[Message, dict[str, str]]:
        """The assistant message as clients see it, calls under wire ids; wire id -> the model's own."""
        wire_ids: dict[str, str] = {}
        calls: list[ToolCall] = []
        for call in parsed.tool_calls:
            wire = session.wire_id()
            wire_ids[wire] = call.id
            calls.append(replace(call, id=wire))
        content = parsed.content
        matched = reply.matched
        if reply.finish_reason == "stop" and isinstance(matched, str) and matched:
            content = content[: content.rfind(matched)] if matched in content else content
        return Message("assistant", content, parsed.reasoning, tuple(calls)), wire_ids


def _told_reason(finish_reason: str, message: Message) -> str:
    """``tool_calls`` only for a turn that ended by itself: a cut turn stays ``length``."""
    return "tool_calls" if finish_reason == "stop" and message.tool_calls else finish_reason
