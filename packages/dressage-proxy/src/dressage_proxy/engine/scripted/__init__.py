"""An engine without a model that speaks SGLang's /generate contract: the test double.

``async with serve_scripted(ScriptedEngine(...)) as url`` runs it in this process;
``python -m dressage_proxy.engine.scripted`` runs it alone and prints its address as one JSON line.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import orjson

from dressage_proxy.engine.prefix import PrefixCache, chain
from dressage_proxy.engine.script import Fault, Output, Policy, Sampled, letters, logprob, replies
from dressage_proxy.engine.scripted_http import (
    Message,
    Receive,
    RefusedError,
    Send,
    read_body,
    send_error,
    send_part,
    send_reply,
    serving,
)
from dressage_proxy.engine.scripted_reply import asked, cut, meta_info
from dressage_proxy.engine.scripted_runs import Run, Scheduler

__all__ = [
    "Fault", "Output", "Policy", "Sampled", "ScriptedEngine", "letters", "logprob", "replies",
    "serve_scripted",
]  # fmt: skip

_PAGE_TOKENS = 16
_STATUS = {
    Fault.BAD_REQUEST: 400,
    Fault.BUSY: 429,
    Fault.SERVER_ERROR: 500,
    Fault.FAILED_ABORT: 500,
    Fault.UNAVAILABLE: 503,
}


class ScriptedEngine:
    """An ASGI application, used from one event loop.

    ``policy`` says what is sampled, ``delay_s`` what a token costs, ``weight_version`` how replies are
    labelled (None: not at all); all may be set between calls. ``inject(*faults)`` spoils the next calls, one
    each; ``hold_after = n`` stops calls after n tokens until ``release`` or an abort, so that a test aborts
    in the middle without a race. ``requests`` are the calls that came, ``aborts`` the abort requests (kept
    unless ``keep=False``). ``experts = (layers, topk, experts)`` adds routed_experts where a call asks for
    them (all rows with ``delta_experts=False``, as engines before routed_experts_start_len did);
    ``prefix_cache = n`` keeps prefixes of n tokens in all, in pages of 16, and reports what of a prompt was
    cached (None: always 0); ``prefill_s`` is what a token that was not costs, one call after the other;
    ``spans=True`` adds weight_versions. A ``pause_generation`` of mode retract or
    in_place lets no call end before ``continue_generation``. Streaming is refused.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        delay_s: float = 0.0,
        slow_s: float = 0.2,
        weight_version: str | None = "0",
        spans: bool = False,
        experts: tuple[int, int, int] | None = None,
        delta_experts: bool = True,
        prefix_cache: int | None = None,
        prefill_s: float = 0.0,
        keep: bool = True,
    ) -> None:
        self.policy = policy or letters()
        self.slow_s = slow_s
        self.weight_version = weight_version
        self.spans = spans
        self.experts = experts
        self.delta_experts = delta_experts
        self._cache = None if prefix_cache is None else PrefixCache(prefix_cache, _PAGE_TOKENS)
        self.prefill_s = prefill_s
        self._prefilling = asyncio.Lock()
        self.keep = keep
        self.healthy = True
        self.requests: list[Sampled] = []
        self.aborts: list[Mapping[str, Any]] = []
        self._calls = 0
        self._faults: deque[Fault] = deque()
        self._scheduler = Scheduler(delay_s)
        self._routes: Mapping[str, Callable[[Mapping[str, Any]], object]] = {
            "/abort_request": self._abort_request,
            "/pause_generation": self._pause,
            "/continue_generation": self._continue,
            "/update_weight_version": self._update_version,
            "/update_weights_from_disk": self._update_weights,
            "/flush_cache": lambda _: None,
            "/model_info": lambda _: {
                "model_path": "scripted", "tokenizer_path": "scripted", "is_generation": True,
                "weight_version": self.weight_version or "default",
            },
            "/server_info": lambda _: {
                "version": "scripted", "incremental_streaming_output": False,
                "enable_return_routed_experts": self.experts is not None,
            },
            "/health": self._health,
            "/health_generate": self._health,
        }  # fmt: skip

    @property
    def delay_s(self) -> float:
        """What a token costs, in seconds."""
        return self._scheduler.delay_s

    @delay_s.setter
    def delay_s(self, value: float) -> None:
        self._scheduler.delay_s = value

    @property
    def hold_after(self) -> int | None:
        """Tokens after which calls wait; None: none waits."""
        return self._scheduler.hold_after

    @hold_after.setter
    def hold_after(self, value: int | None) -> None:
        self._scheduler.hold_after = value

    @property
    def running(self) -> int:
        """Calls that are in the engine now (those that answer at once never are)."""
        return len(self._scheduler)

    @property
    def paused(self) -> bool:
        """Whether /pause_generation holds new calls."""
        return self._scheduler.paused

    async def until_running(self, count: int) -> None:
        """Wait until exactly ``count`` calls are in the engine."""
        await self._scheduler.until(count)

    async def release(self) -> None:
        """Let held calls go on to their end, and hold none any more."""
        await self._scheduler.release()

    def stop(self) -> None:
        """Abort what runs and let nothing wait."""
        self._scheduler.resume()
        self._scheduler.abort("")

    def inject(self, *faults: Fault) -> None:
        """Spoil the next calls, one fault each, in this order."""
        self._faults.extend(faults)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            raise RuntimeError(f"the scripted engine serves http alone, got {scope['type']}")
        body = await read_body(receive)
        if body is None:
            return
        try:
            payload = orjson.loads(body) if body else {}
            if not isinstance(payload, dict):
                raise RefusedError("the body must be a JSON object")
            if scope["path"] == "/generate":
                await self._generate(payload, receive, send)
                return
            route = self._routes.get(scope["path"])
            if route is None:
                raise RefusedError(f"no such route: {scope['path']}", 404)
            reply = route(payload)
            await send_reply(send, 200, b"" if reply is None else orjson.dumps(reply))
        except orjson.JSONDecodeError as error:
            await send_error(send, 400, f"the body is no JSON: {error}")
        except RefusedError as refusal:
            await send_error(send, refusal.status, str(refusal))

    async def _generate(self, payload: Mapping[str, Any], receive: Receive, send: Send) -> None:
        call = self._accept(payload)
        if call.fault is Fault.DROP:
            await send_part(send)
            return
        if call.fault in _STATUS:
            raise RefusedError(f"scripted fault: {call.fault}", _STATUS[call.fault])
        if call.fault is Fault.NO_JSON:
            await send_reply(send, 200, b"<html>gateway</html>")
            return
        if call.fault is Fault.SLOW:
            await asyncio.sleep(self.slow_s)
        cached = await self._prefill(call.input_ids)
        made = self.policy(call.input_ids, call.sampling_params, call.number)
        output = cut(made if isinstance(made, Output) else Output(made), call.sampling_params)
        run = Run(call.rid, len(output.ids), self.weight_version or "")
        if call.fault is Fault.QUEUED_ABORT:
            run.tokens = 0
            run.aborted.set()
        elif self._scheduler.idle:
            run.started = 0.0
        else:
            await self._scheduler.run(run, receive)
        call.output_ids = list(output.ids[: run.tokens])
        self._fill([*call.input_ids, *call.output_ids])
        meta = meta_info(
            call, run, output, payload,
            labelled=self.weight_version is not None, spans=self.spans, cached=cached,
            experts=self.experts, delta_experts=self.delta_experts,
        )  # fmt: skip
        call.finish = meta["finish_reason"]["type"]
        await send_reply(
            send, 200, orjson.dumps({"text": "", "output_ids": call.output_ids, "meta_info": meta})
        )

    async def _prefill(self, ids: list[int]) -> int:
        """What of a prompt was cached; the rest takes its time."""
        if not self.prefill_s:
            return self._cached(ids)
        async with self._prefilling:
            cached = self._cached(ids)
            await asyncio.sleep(self.prefill_s * (len(ids) - cached))
            self._fill(ids)
        return cached

    def _cached(self, ids: list[int]) -> int:
        if self._cache is None:
            return 0
        return self._cache.cached_tokens(chain(np.array(ids, np.int32), _PAGE_TOKENS))

    def _fill(self, ids: list[int]) -> None:
        if self._cache is not None:
            self._cache.touch(chain(np.array(ids, np.int32), _PAGE_TOKENS))

    def _accept(self, payload: Mapping[str, Any]) -> Sampled:
        ids, params = asked(payload)
        fault = self._faults.popleft() if self._faults else None
        call = Sampled(self._calls, str(payload.get("rid") or self._calls), ids, params, fault=fault)
        self._calls += 1
        if self.keep:
            self.requests.append(call)
        return call

    def _abort_request(self, payload: Mapping[str, Any]) -> None:
        if self.keep:
            self.aborts.append(payload)
        if payload.get("abort_all"):
            self._scheduler.abort("")
        elif payload.get("rid"):
            self._scheduler.abort(str(payload["rid"]))

    def _pause(self, payload: Mapping[str, Any]) -> object:
        mode = payload.get("mode", "abort")
        if mode not in ("abort", "retract", "in_place"):
            raise RefusedError(f"mode must be abort, retract or in_place, got {mode!r}")
        self._scheduler.pause()
        if mode == "abort":
            self._scheduler.abort("")
        return {"status": "ok"}

    def _continue(self, payload: Mapping[str, Any]) -> object:
        self._scheduler.resume()
        return {"status": "ok"}

    def _update_version(self, payload: Mapping[str, Any]) -> object:
        if payload.get("new_version") is None:
            raise RefusedError("new_version is missing")
        if payload.get("abort_all_requests", True):
            self._scheduler.abort("")
        self._relabel(str(payload["new_version"]))
        return {"success": True, "message": "", "new_version": self.weight_version}

    def _update_weights(self, payload: Mapping[str, Any]) -> object:
        if payload.get("weight_version") is not None:
            self._relabel(str(payload["weight_version"]))
        return {"success": True, "message": "", "num_paused_requests": 0}

    def _relabel(self, version: str) -> None:
        self.weight_version = version
        self._scheduler.relabel(version)

    def _health(self, payload: Mapping[str, Any]) -> None:
        if not self.healthy:
            raise RefusedError("not healthy", 503)


@asynccontextmanager
async def serve_scripted(engine: ScriptedEngine, *, port: int = 0) -> AsyncIterator[str]:
    """Serve an engine on the loopback of this process; yields its base URL. What runs at the end is aborted.

    Raises OSError when the port is taken.
    """
    async with serving(engine, port) as url:
        try:
            yield url
        finally:
            engine.stop()
