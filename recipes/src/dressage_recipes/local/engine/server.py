"""The local engine behind SGLang's HTTP contract: /generate, aborts, pauses, weight updates.

The model is stepped by one thread of its own; requests reach it through a queue of commands and their replies
come back to the event loop, so that HTTP never waits for a forward pass.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import orjson
from safetensors.torch import load_file
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from dressage_recipes.local.engine.batch import BatchEngine, Request
from dressage_recipes.local.engine.errors import EngineError, InvalidRequestError
from dressage_recipes.local.engine.sampling import SamplingParams, parse_sampling

_T = TypeVar("_T")
_MODES = ("abort", "retract", "in_place")


class Stepper:
    """Owns a :class:`BatchEngine`: every touch of it happens in one thread."""

    def __init__(self, engine: BatchEngine) -> None:
        self._engine = engine
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Begin to step."""
        self._thread.start()

    def stop(self) -> None:
        """End after the current step."""
        self._commands.put(None)
        self._thread.join()

    def call(self, work: Callable[[BatchEngine], _T]) -> Future[_T]:
        """Run ``work`` between two steps."""
        future: Future[_T] = Future()

        def run() -> None:
            try:
                future.set_result(work(self._engine))
            except EngineError as error:
                future.set_exception(error)

        self._commands.put(run)
        return future

    def _run(self) -> None:
        try:
            while self._obey():
                if self._engine.busy:
                    self._engine.step()
        except BaseException as error:
            # Kept for /health: a dead model thread must not look like a slow one.
            self.failure = error
            raise

    def _obey(self) -> bool:
        """Run the commands that are there; wait for one when there is nothing to step. False: stop."""
        wait = not self._engine.busy
        while True:
            try:
                command = self._commands.get(block=wait)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()
            wait = False


class EngineServer:
    """Routes over a stepper. Used from one event loop."""

    def __init__(self, stepper: Stepper, *, model_path: str, context_length: int, vocab_size: int) -> None:
        self._stepper = stepper
        self._model_path = model_path
        self._context_length = context_length
        self._vocab_size = vocab_size
        self._version = "0"
        self._paused = False
        self._resumed = asyncio.Event()
        self._resumed.set()

    def app(self) -> Starlette:
        """The ASGI application."""
        post: Mapping[str, Callable[[dict[str, Any]], Any]] = {
            "/generate": self._generate,
            "/abort_request": self._abort,
            "/pause_generation": self._pause,
            "/continue_generation": self._continue,
            "/update_weights_from_disk": self._update_weights,
            "/update_weight_version": self._update_version,
            "/flush_cache": self._flush,
        }
        routes = [Route(path, _json_route(handler), methods=["POST"]) for path, handler in post.items()]
        for path in ("/model_info", "/server_info"):
            routes.append(Route(path, self._info, methods=["GET"]))
        for path in ("/health", "/health_generate"):
            routes.append(Route(path, self._health, methods=["GET"]))
        return Starlette(routes=routes)

    async def _generate(self, body: dict[str, Any]) -> Response:
        prompt = self._prompt(body.get("input_ids"))
        rid = body.get("rid")
        if not isinstance(rid, str) or not rid:
            raise InvalidRequestError("rid", "must be a non-empty text")
        if body.get("stream"):
            raise InvalidRequestError("stream", "is not supported by the local engine; send false")
        params = parse_sampling(body.get("sampling_params"))
        room = self._context_length - len(prompt)
        if room < 1:
            raise InvalidRequestError(
                "input_ids", f"has {len(prompt)} ids, the context is {self._context_length}: shorten it"
            )
        await self._resumed.wait()
        request = await self._sampled(rid, prompt, params, room)
        return _json(_reply(request))

    def _prompt(self, ids: object) -> list[int]:
        if not isinstance(ids, list) or not ids:
            raise InvalidRequestError("input_ids", "must be a non-empty list of token ids")
        if not all(type(i) is int and 0 <= i < self._vocab_size for i in ids):
            raise InvalidRequestError(
                "input_ids", f"must hold whole numbers from 0 to {self._vocab_size - 1}"
            )
        return ids

    async def _sampled(self, rid: str, prompt: list[int], params: SamplingParams, room: int) -> Request:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Request] = loop.create_future()

        def finished(request: Request) -> None:
            loop.call_soon_threadsafe(_resolve, done, request)

        if params.max_new_tokens > room:
            params = replace(params, max_new_tokens=room)
        request = Request(rid, prompt, params, finished)
        self._stepper.call(lambda engine: engine.submit(request))
        try:
            return await done
        except asyncio.CancelledError:
            self._stepper.call(lambda engine: engine.abort(rid))
            raise

    async def _abort(self, body: dict[str, Any]) -> Response:
        rid, everything = body.get("rid"), bool(body.get("abort_all"))
        if not everything and (not isinstance(rid, str) or not rid):
            raise InvalidRequestError("rid", "must be a non-empty text, or send abort_all")
        await self._ask(lambda engine: engine.abort(None if everything else rid))
        return Response(status_code=200)

    async def _pause(self, body: dict[str, Any]) -> Response:
        mode = body.get("mode", "abort")
        if mode not in _MODES:
            raise InvalidRequestError("mode", f"is {mode!r}; send one of {', '.join(_MODES)}")
        self._resumed.clear()
        await self._ask(lambda engine: engine.pause(mode))
        return _json({"status": "paused", "mode": mode})

    async def _continue(self, body: dict[str, Any]) -> Response:
        await self._ask(lambda engine: engine.resume())
        self._resumed.set()
        return _json({"status": "running"})

    async def _update_weights(self, body: dict[str, Any]) -> Response:
        path = body.get("model_path")
        if not isinstance(path, str):
            raise InvalidRequestError("model_path", "must be a folder with model.safetensors")
        file = Path(path) / "model.safetensors"
        if not file.is_file():
            raise InvalidRequestError("model_path", f"has no model.safetensors: {file}")
        version = str(body.get("weight_version") or self._version)
        loaded = await asyncio.to_thread(load_file, str(file))

        def update(engine: BatchEngine) -> int:
            state = engine.model.state_dict()
            unknown = [name for name in loaded if name not in state]
            if unknown:
                raise InvalidRequestError("model_path", f"holds weights that the model lacks: {unknown[:3]}")
            for name, value in loaded.items():
                state[name].copy_(value)
            engine.weights_changed(version)
            return len(loaded)

        count = await self._ask(update)
        self._version = version
        return _json({"success": True, "message": f"{count} tensors", "num_paused_requests": 0})

    async def _update_version(self, body: dict[str, Any]) -> Response:
        version = body.get("new_version")
        if not isinstance(version, str) or not version:
            raise InvalidRequestError("new_version", "must be a non-empty text")
        # SGLang aborts everything here unless told not to.
        if body.get("abort_all_requests", True):
            await self._ask(lambda engine: engine.abort(None))
        await self._ask(lambda engine: engine.weights_changed(version))
        self._version = version
        return _json({"success": True, "new_version": version})

    async def _flush(self, body: dict[str, Any]) -> Response:
        await self._ask(lambda engine: engine.flush())
        return Response(status_code=200)

    async def _info(self, request: HttpRequest) -> Response:
        return _json(
            {
                "model_path": self._model_path,
                "weight_version": self._version,
                "context_length": self._context_length,
                "is_generation": True,
            }
        )

    async def _health(self, request: HttpRequest) -> Response:
        failed = self._stepper.failure
        return Response(status_code=200) if failed is None else Response(repr(failed), status_code=503)

    async def _ask(self, work: Callable[[BatchEngine], _T]) -> _T:
        return await asyncio.wrap_future(self._stepper.call(work))


def _resolve(future: asyncio.Future[Request], request: Request) -> None:
    if not future.done():
        future.set_result(request)


def _reply(request: Request) -> dict[str, Any]:
    output = request.output
    meta: dict[str, Any] = {"id": request.rid, "finish_reason": request.finish}
    if request.started:
        versions = _spans(request.versions)
        meta |= {
            "prompt_tokens": len(request.prompt),
            "completion_tokens": len(output),
            "cached_tokens": request.reused,
            "output_token_logprobs": [
                [logprob, token, None] for logprob, token in zip(request.logprobs, output, strict=True)
            ],
        }
        if versions:
            meta["weight_versions"] = versions
            meta["weight_version"] = versions[-1]["version"]
    return {"text": "", "output_ids": output, "meta_info": meta}


def _spans(versions: list[str]) -> list[dict[str, Any]]:
    spans: list[dict[str, Any]] = []
    for index, version in enumerate(versions):
        if spans and spans[-1]["version"] == version:
            spans[-1]["end"] = index + 1
        else:
            spans.append({"version": version, "start": index, "end": index + 1})
    return spans


def _json(payload: Mapping[str, Any]) -> Response:
    return Response(orjson.dumps(payload), media_type="application/json")


def _json_route(handler: Callable[[dict[str, Any]], Any]) -> Callable[[HttpRequest], Any]:
    async def route(request: HttpRequest) -> Response:
        raw = await request.body()
        try:
            body = orjson.loads(raw) if raw else {}
            if not isinstance(body, dict):
                raise InvalidRequestError("body", "must be a JSON object")
            response: Response = await handler(body)
        except (EngineError, orjson.JSONDecodeError) as error:
            text = orjson.dumps({"error": {"message": str(error), "code": 400}})
            return Response(text, status_code=400, media_type="application/json")
        return response

    return route
