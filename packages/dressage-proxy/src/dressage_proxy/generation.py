"""Sampling one reply: as many engine calls as pauses make of it, each with its evidence."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from dressage_segments import EngineCall, LossCause
from numpy.typing import NDArray

from dressage_proxy.controller import Controller
from dressage_proxy.engine.choose import Step, Ticket
from dressage_proxy.engine.experts import ExpertsAsk, ExpertsShape
from dressage_proxy.engine.http import Exchange
from dressage_proxy.engine.pool import EnginePool
from dressage_proxy.engine.prompt import Prompt
from dressage_proxy.engine.wire import NOTHING, Call, CallResult
from dressage_proxy.errors import (
    EngineError,
    EngineOverflowError,
    EngineRefusalError,
    PassingEngineError,
    RequestError,
    StrangeEngineError,
)
from dressage_proxy.fresh import fresh_id
from dressage_proxy.records import record
from dressage_proxy.sampled import Reply
from dressage_proxy.sampling import Effective
from dressage_proxy.stopping import cut_at_stop
from dressage_proxy.versions import VersionBudget

_EMPTY_ABORTS = 8
_EMPTY_ABORT_S = 0.05
_BACKOFF_S = 0.1
_BACKOFF_CAP_S = 5.0
_WISH_CAP_S = 30.0
"""An engine that wishes to be left alone for longer is asked again after this: a turn must not hang."""
_DRAIN_S = 2.0
_REPEAT_ABORT_S = 0.25


class Generator:
    """Drives engines through the gate."""

    def __init__(
        self,
        engines: EnginePool,
        controller: Controller,
        stop_token_ids: tuple[int, ...],
        decode: Callable[[NDArray[np.int32]], str],
        attempts: int,
        experts: ExpertsShape | None = None,
        vocabulary: int = 2**31,
    ) -> None:
        """``attempts``: tries of one engine call before any of its tokens is accepted. With ``experts``
        every call asks for its routed experts. ``vocabulary``: how many ids the tokenizer has."""
        self._engines = engines
        self._controller = controller
        self._stop_token_ids = stop_token_ids
        self._decode = decode
        self._attempts = attempts
        self._experts = experts
        self._vocabulary = vocabulary

    async def sample(
        self,
        session_id: str,
        prompt: Prompt,
        sampling: Effective,
        reply: Reply,
        versions: VersionBudget | None = None,
    ) -> None:
        """Fill ``reply`` until it stops, is full, or the task is cancelled; what was sampled stays in it.

        ``sampling.max_tokens`` counts the whole reply over all calls. ``versions`` is what is left of the
        session's switches of weight versions. Raises EngineError, EngineRefusalError, EngineOverflowError and
        VersionLimitError; tokens that earlier calls returned are in ``reply`` even then.
        """
        versions = versions or VersionBudget()
        empty = 0
        while True:
            if reply.tokens >= sampling.max_tokens:
                reply.finish_reason = "length"
                return
            result = await self._call(session_id, prompt, sampling, reply, versions)
            versions.sees(result.versions)
            if reply.finish_reason != "abort":
                return
            if len(result.output_ids) or self._controller.holds(session_id):
                empty = 0
                continue
            empty += 1
            if empty > _EMPTY_ABORTS:
                raise EngineError("the engine keeps aborting this call although nobody paused it")
            await asyncio.sleep(_EMPTY_ABORT_S * empty)

    async def _call(
        self,
        session_id: str,
        prompt: Prompt,
        sampling: Effective,
        reply: Reply,
        versions: VersionBudget,
    ) -> CallResult:
        """One call whose tokens are accepted, after as many tries as it takes. Raises EngineError.

        Each try has a rid of its own and goes to another engine where there is one. Between tries nothing is
        in flight, so that a pause does not wait for a back-off. What an engine refuses is asked of no other;
        one whose window is smaller than the proxy's is asked for a reply that fits.
        """
        said = sampling.recorded.get("stop", ())
        left = sampling.max_tokens - reply.tokens
        if reply.pieces:
            prompt = prompt.followed_by(reply.ids)
        step = Step(session_id, len(prompt), left)
        tried: set[str] = set()
        for attempt in itertools.count(1):
            params = sampling.engine_params(left, self._stop_token_ids)
            asked = _Asked(fresh_id(), step, prompt, left, said, params, versions)
            ticket = self._engines.place(step, prompt, tried)
            last = attempt >= self._attempts
            try:
                return await self._attempt(asked, ticket, reply)
            except EngineRefusalError as error:
                self._engines.refused(ticket, error.detail)
                raise
            except EngineOverflowError as error:
                self._engines.refused(ticket, error.detail)
                left -= error.excess
                if last or not error.excess or left < 1:
                    raise
            except PassingEngineError as error:
                self._engines.failed(ticket, error)
                tried.add(ticket.url)
                others = self._engines.others(tried)
                if last or (isinstance(error, StrangeEngineError) and not others):
                    raise error.after(attempt) from error
                if not others:
                    tried.clear()
                    wished = error.delay_s
                    await asyncio.sleep(_backoff(attempt) if wished is None else min(wished, _WISH_CAP_S))
        raise AssertionError("unreachable")

    async def _attempt(self, asked: _Asked, ticket: Ticket, reply: Reply) -> CallResult:
        engine, rid = ticket.url, asked.rid
        result: CallResult | None = None
        try:
            version = await self._entered(asked, engine, reply)
            try:
                asked.versions.check(version)
                call = Call(rid, asked.prompt, asked.params, version, self._ask(reply), self._vocabulary)
                running = await self._engines.begin(engine, call)
                try:
                    result = await self._engines.result(engine, call, running)
                except asyncio.CancelledError:
                    result = await self._abandoned(engine, call, running)
                    self._keep(reply, result, asked, engine)
                    raise
                except PassingEngineError as error:
                    if error.lost:
                        await self._engines.abort_within(engine, rid, _REPEAT_ABORT_S)
                    raise
                # Still in flight: a cancellation on the way out must find the tokens in the reply.
                return self._keep(reply, result, asked, engine)
            finally:
                self._controller.leave(rid)
        finally:
            self._engines.end(ticket, result, asked.prompt)

    async def _entered(self, asked: _Asked, engine: str, reply: Reply) -> int:
        """Pass the gate; the version known at dispatch. What it waits there counts as held."""
        session_id, now = asked.step.session_id, asyncio.get_running_loop().time
        came = now() if self._controller.holds(session_id) else None
        try:
            return await self._controller.enter(session_id, asked.rid, engine, spared=asked.versions.spent)
        finally:
            if came is not None:
                reply.held_s += now() - came

    def _ask(self, reply: Reply) -> ExpertsAsk | None:
        return None if self._experts is None else ExpertsAsk(self._experts, reply.experts_end)

    def _keep(self, reply: Reply, result: CallResult, asked: _Asked, engine: str) -> CallResult:
        """Put a call's output into the reply, up to what ends it."""
        if len(result.output_ids) > asked.left:
            result = replace(result, untrainable=LossCause.MISALIGNED.value)
        kept, finish, matched = cut_at_stop(self._decode, reply.ids, result, asked.stop)
        if len(kept.output_ids) or finish != "abort":
            reply.pieces.append(kept)
            reply.calls.append(
                EngineCall(
                    call_id=asked.rid,
                    prompt_tokens=len(asked.prompt),
                    prompt_digest=asked.prompt.digest.hexdigest(),
                    output_tokens=len(kept.output_ids),
                    finish_reason=kept.finish_reason,
                    engine=engine,
                    matched=kept.matched,
                    untrainable=kept.untrainable,
                    dropped_tokens=len(result.output_ids) - len(kept.output_ids),
                )
            )
            reply.finish_reason, reply.matched = finish, matched
        return kept

    async def _abandoned(self, engine: str, call: Call, running: Exchange) -> CallResult:
        """What the engine had sampled when the turn was cancelled: it is told to abort, and its answer is
        awaited for a moment, so that its tokens are accounted for."""
        deadline = asyncio.get_running_loop().time() + _DRAIN_S
        while not running.ended and asyncio.get_running_loop().time() < deadline:
            # Again and again: an abort that overtakes its own request finds nothing to abort.
            await self._engines.abort_within(engine, call.rid, _REPEAT_ABORT_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(_REPEAT_ABORT_S):
                    await running.wait()
        running.drop()
        try:
            return await self._engines.result(engine, call, running)
        except RequestError:
            return NOTHING


@record
class _Asked:
    """One try of an engine call, and how much it may sample."""

    rid: str
    step: Step
    prompt: Prompt
    left: int
    stop: Sequence[str]
    params: Mapping[str, Any]
    versions: VersionBudget


def _backoff(attempt: int) -> float:
    return min(_BACKOFF_CAP_S, _BACKOFF_S * 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.0)
