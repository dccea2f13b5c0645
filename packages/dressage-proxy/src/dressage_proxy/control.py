"""The control plane: sessions, segments, pause and resume, under one bearer key."""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable
from typing import Any

from dressage_segments import FailureClass, SessionInfo, segment_to_bytes, write_frames
from dressage_tito import ThinkingPolicy
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field

from dressage_proxy.config import Limits, ProxyConfig, Sampling, Storable
from dressage_proxy.controller import Controller
from dressage_proxy.engine.pool import EnginePool
from dressage_proxy.errors import UnauthorizedError
from dressage_proxy.metrics import Metrics
from dressage_proxy.pipeline import Pipeline
from dressage_proxy.sessions import Sessions

_MAX_ID = 512
_MAX_VERSION = 2**31 - 1
"""Versions are kept as int32, one a token."""


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ErrorDetail(BaseModel):
    """What was wrong, where, and what to do instead."""

    code: str
    message: str
    field: str | None = None
    fix: str | None = None


class ErrorBody(BaseModel):
    """The body of every refusal."""

    error: ErrorDetail


_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text}
    for status, text in {
        400: "The body is no JSON.",
        401: "The control key is missing or wrong.",
        404: "No such session.",
        409: "The state does not allow it.",
        410: "The session is finished.",
        422: "A field is missing, unknown or out of range.",
        503: "The proxy is full, being stopped, or its store failed; comes with Retry-After.",
    }.items()
}


class OpenBody(_Body):
    """``POST /sessions``."""

    instance_id: str = Field(min_length=1, max_length=_MAX_ID)
    group_id: str | None = Field(default=None, max_length=_MAX_ID)
    rollout_id: str | None = Field(default=None, max_length=_MAX_ID)
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    labels: Storable[dict[str, str]] = Field(default_factory=dict)
    thinking: ThinkingPolicy = "keep"


class FinalizeBody(_Body):
    """``POST /sessions/{id}/finalize``."""

    outcome: Storable[dict[str, Any] | None] = None
    failure_class: FailureClass = FailureClass.COMPLETED


class AckBody(_Body):
    """``POST /sessions/{id}/ack``."""

    generation: int = Field(ge=1, strict=True)


class PauseBody(_Body):
    """``POST /rollout/pause``."""

    session_id: str | None = None
    timeout_s: float = Field(default=60.0, ge=0, le=3600)
    force: bool = False
    """Preempt also sessions that have used up their switches of weight versions: they are refused after."""


class ResumeBody(_Body):
    """``POST /rollout/resume``."""

    version: int = Field(ge=0, le=_MAX_VERSION, strict=True)


def control_router(
    config: ProxyConfig,
    sessions: Sessions,
    pipeline: Pipeline,
    controller: Controller,
    metrics: Metrics,
    base_url: str,
) -> APIRouter:
    """Routes that need the control key. ``base_url`` is the data plane's own address."""

    async def authorized(request: Request) -> None:
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {config.control_key}".encode()):
            raise UnauthorizedError(
                "the control key is missing or wrong", fix="send Authorization: Bearer <control key>"
            )

    router = APIRouter(dependencies=[Depends(authorized)], responses=_REFUSALS)
    _session_routes(router, sessions, pipeline, base_url)
    _segment_routes(router, sessions)

    @router.post("/rollout/pause")
    async def pause(body: PauseBody) -> dict[str, Any]:
        if body.session_id is not None:
            sessions.live(body.session_id)
        result = await controller.pause(body.session_id, body.timeout_s, force=body.force)
        reply = {"quiesced": result.quiesced, "preempted": result.preempted, "waiting": result.waiting}
        return {**reply, "spared": result.spared} if result.spared else reply

    @router.post("/rollout/resume")
    async def resume(body: ResumeBody) -> dict[str, Any]:
        await controller.resume(body.version)
        return _rollout(controller)

    @router.get("/rollout")
    async def rollout() -> dict[str, Any]:
        return _rollout(controller)

    @router.get("/metrics", response_class=PlainTextResponse)
    async def exposition() -> Response:
        metrics.in_flight.set(controller.in_flight)
        return Response(metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


def health_router(store_writable: Callable[[], bool], engines: EnginePool, pipeline: Pipeline) -> APIRouter:
    """Liveness and readiness; no key."""
    router = APIRouter()

    @router.head("/health", include_in_schema=False)
    @router.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @router.head("/ready", include_in_schema=False)
    @router.get("/ready", responses={503: {"description": "Not ready: the same body says why."}})
    async def ready(response: Response) -> dict[str, Any]:
        states = dict(await engines.healthy())
        writable = store_writable()
        good = any(states.values()) and writable and not pipeline.draining
        response.status_code = 200 if good else 503
        return {
            "ready": good,
            "engines": states,
            "store_writable": writable,
            "draining": pipeline.draining,
            "warnings": engines.warnings,
        }

    return router


def _session_routes(router: APIRouter, sessions: Sessions, pipeline: Pipeline, base_url: str) -> None:
    @router.post("/sessions", status_code=201)
    async def open_session(body: OpenBody) -> dict[str, Any]:
        info = SessionInfo("", body.instance_id, body.group_id or "", body.rollout_id or "")
        session = sessions.open(
            info, sampling=body.sampling, limits=body.limits, labels=body.labels, thinking=body.thinking
        )
        url = f"{base_url}/s/{session.id}"
        return {"session_id": session.id, "base_urls": {"openai": f"{url}/v1", "anthropic": url}}

    @router.get("/sessions/{session_id}")
    async def get_session(session_id: str) -> dict[str, Any]:
        session = sessions.find(session_id)
        tree = session.tree
        final = session.final
        kinds = Counter(turn.kind.value for turn in tree.turns if not tree.children(turn.index))
        return {
            "session_id": session.id,
            "instance_id": session.info.instance_id,
            "group_id": session.info.group_id,
            "rollout_id": session.info.rollout_id,
            "state": session.state.value,
            "steps": final.steps if final else len(tree),
            "branches": dict(kinds),
            "tokens": final.sampled_tokens if final else tree.sampled_tokens,
            "in_flight": pipeline.attempts.of(session.id),
            "generation": final.generation if final else None,
            "expired": final is not None and final.expired,
            "labels": dict(session.labels),
        }

    @router.post("/sessions/{session_id}/finalize")
    async def finalize(session_id: str, body: FinalizeBody | None = None) -> dict[str, Any]:
        body = body or FinalizeBody()
        final = await sessions.finalize(session_id, body.outcome or {}, body.failure_class)
        return {
            "segments": final.segments,
            "trained_tokens": final.trained_tokens,
            "lost_tokens": dict(final.lost_tokens),
            "sampled_tokens": final.sampled_tokens,
            "generation": final.generation,
        }

    @router.delete("/sessions/{session_id}", status_code=204)
    async def delete(session_id: str) -> Response:
        await sessions.delete(session_id)
        return Response(status_code=204)


def _segment_routes(router: APIRouter, sessions: Sessions) -> None:
    @router.get(
        "/sessions/{session_id}/segments",
        response_class=Response,
        responses={200: {"content": {"application/octet-stream": {}}}},
    )
    async def segments(session_id: str) -> Response:
        trajectory = sessions.trajectory(session_id)
        return Response(
            write_frames(segment_to_bytes(segment) for segment in trajectory.segments),
            media_type="application/octet-stream",
            headers={"ETag": f'"{trajectory.generation}"'},
        )

    @router.post("/sessions/{session_id}/ack", status_code=204)
    async def ack(session_id: str, body: AckBody) -> Response:
        sessions.ack(session_id, body.generation)
        return Response(status_code=204)


def _rollout(controller: Controller) -> dict[str, Any]:
    return {
        "state": "paused" if controller.paused else "running",
        "version": controller.version if controller.version >= 0 else None,
        "in_flight": controller.in_flight,
        "waiting": controller.waiting,
    }
