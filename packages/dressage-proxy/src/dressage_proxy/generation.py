"""Sampling one reply: as many engine calls as pauses make of it, each with its evidence."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from dressage_segments import EngineCall, IdsDigest
from numpy.typing import NDArray

from dressage_proxy.controller import Controller
from dressage_proxy.engine.client import EngineClient
from dressage_proxy.engine.wire import NOTHING, CallResult
from dressage_proxy.errors import EngineError
from dressage_proxy.sampling import Effective

_T = TypeVar("_T", bound=np.generic)
_EMPTY_ABORTS = 8
_EMPTY_ABORT_S = 0.05
_DRAIN_S = 2.0
_REPEAT_ABORT_S = 0.25


@dataclass(slots=True)
class Reply:
    """What was sampled so far. ``ids`` int32 [N], ``logprobs`` float32 [N], ``versions`` int32 [N] are the
    calls' outputs one after the other."""

    pieces: list[CallResult] = field(default_factory=list)
    calls: list[EngineCall] = field(default_factory=list)
    finish_reason: str = "abort"

    @property
    def tokens(self) -> int:
        """Ids sampled so far."""
        return sum(len(piece.output_ids) for piece in self.pieces)

    @property
    def ids(self) -> NDArray[np.int32]:
        """All sampled ids."""
        return _join([piece.output_ids for piece in self.pieces], np.int32)

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """Their logprobs."""
        return _join([piece.logprobs for piece in self.pieces], np.float32)

    @property
    def versions(self) -> NDArray[np.int32]:
        """Their weight versions."""
        return _join([piece.versions for piece in self.pieces], np.int32)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a reply is sampled after: ids int32 [T] and their running digest."""

    ids: NDArray[np.int32]
    digest: IdsDigest


class Generator:
    """Drives engines through the gate."""

    def __init__(
        self,
        engines: EngineClient,
        controller: Controller,
        stop_token_ids: tuple[int, ...],
        decode: Callable[[NDArray[np.int32]], str],
    ) -> None:
        self._engines = engines
        self._controller = controller
        self._stop_token_ids = stop_token_ids
        self._decode = decode

    async def sample(self, session_id: str, prompt: Prompt, sampling: Effective, reply: Reply) -> None:
        """Fill ``reply`` until it stops, is full, or the task is cancelled; what was sampled stays in it.

        ``sampling.max_tokens`` counts the whole reply over all calls. Raises EngineError; tokens that earlier
        calls returned are in ``reply`` even then.
        """
        empty = 0
        while True:
            left = sampling.max_tokens - reply.tokens
            if left <= 0:
                reply.finish_reason = "length"
                return
            result = await self._call(session_id, prompt, sampling, reply, left)
            if result.finish_reason != "abort":
                reply.finish_reason = result.finish_reason
                return
            if len(result.output_ids) or self._controller.holds(session_id):
                empty = 0
                continue
            empty += 1
            if empty > _EMPTY_ABORTS:
                raise EngineError("the engine keeps aborting this call although nobody paused it")
            await asyncio.sleep(_EMPTY_ABORT_S * empty)

    async def _call(
        self, session_id: str, prompt: Prompt, sampling: Effective, reply: Reply, left: int
    ) -> CallResult:
        engine = self._engines.choose(session_id)
        rid = uuid.uuid4().hex
        ids = prompt.ids if not reply.pieces else np.concatenate([prompt.ids, reply.ids])
        digest = prompt.digest.copy()
        digest.update(reply.ids)
        params = sampling.engine_params(left, self._stop_token_ids)
        async with self._controller.call(session_id, rid, engine) as version:
            task = asyncio.create_task(self._engines.generate(engine, rid, ids, params, version))
            try:
                result = await asyncio.shield(task)
            except asyncio.CancelledError:
                result = await self._abandoned(engine, rid, task)
                self._keep(reply, result, rid, engine, len(ids), digest.hexdigest(), left)
                raise
            # Still inside: a cancellation on the way out must find the tokens in the reply.
            return self._keep(reply, result, rid, engine, len(ids), digest.hexdigest(), left)

    def _keep(
        self, reply: Reply, result: CallResult, rid: str, engine: str, prompt: int, digest: str, left: int
    ) -> CallResult:
        """Put a call's output into the reply. Raises EngineError when it is longer than was asked for."""
        if len(result.output_ids) > left:
            raise EngineError(f"the engine returned {len(result.output_ids)} tokens of at most {left}")
        result = self._cut_at_stop(result)
        if len(result.output_ids) or result.finish_reason != "abort":
            reply.pieces.append(result)
            reply.calls.append(
                EngineCall(
                    call_id=rid,
                    prompt_tokens=prompt,
                    prompt_digest=digest,
                    output_tokens=len(result.output_ids),
                    finish_reason=result.finish_reason,
                    engine=engine,
                    matched=result.matched,
                    untrainable=result.untrainable,
                )
            )
        return result

    async def _abandoned(self, engine: str, rid: str, task: asyncio.Task[CallResult]) -> CallResult:
        """What the engine had sampled when the turn was cancelled: it is told to abort, and its answer is
        awaited for a moment, so that its tokens are accounted for."""
        deadline = asyncio.get_running_loop().time() + _DRAIN_S
        while not task.done() and asyncio.get_running_loop().time() < deadline:
            # Again and again: an abort that overtakes its own request finds nothing to abort.
            await self._engines.abort(engine, rid)
            await asyncio.wait({task}, timeout=_REPEAT_ABORT_S)
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        if task.cancelled() or task.exception() is not None:
            return NOTHING
        return task.result()

    def _cut_at_stop(self, result: CallResult) -> CallResult:
        """Keep ids up to the one that completed the stop string: a decoding step may go past it (C15)."""
        if result.finish_reason != "stop" or not isinstance(result.matched, str) or not result.matched:
            return result
        place = self._decode(result.output_ids).rfind(result.matched)
        if place < 0:
            return result
        low, high = 1, len(result.output_ids)
        while low < high:
            middle = (low + high) // 2
            if self._decode(result.output_ids[:middle]).rfind(result.matched) >= place:
                high = middle
            else:
                low = middle + 1
        return result.first(low)


def _join(arrays: list[NDArray[_T]], dtype: type[_T]) -> NDArray[_T]:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)
