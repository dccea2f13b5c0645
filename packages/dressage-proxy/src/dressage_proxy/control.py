"""The control plane: sessions, segments, pause and resume, under one bearer key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from dressage_segments import SessionInfo, segment_to_bytes, write_frames
from fastapi import APIRouter, Depends, Request, Response
from fastapi.security import HTTPBearer

from dressage_proxy.config import Limits, ProxyConfig, Sampling
from dressage_proxy.control_bodies import (
    BODY,
    SESSION,
    AckBody,
    BaseUrls,
    FinalizeBody,
    FinalizedView,
    HealthView,
    OpenBody,
    Opened,
    PauseBody,
    PausedView,
    ReadyView,
    ResumeBody,
    RolloutView,
    SessionView,
    refusals,
    unnamed,
)
from dressage_proxy.controller import Controller
from dressage_proxy.engine.pool import EnginePool
from dressage_proxy.errors import UnauthorizedError
from dressage_proxy.guard import UNAUTHORIZED, UNAUTHORIZED_FIX, key_fits
from dressage_proxy.metrics import Metrics
from dressage_proxy.pipeline import Pipeline
from dressage_proxy.sessions import Sessions

_PROBE_S = 2.0
"""Who asks whether the proxy is ready does not wait long: an engine whose machine is gone says nothing."""
EVERY_ADDRESS = ("0.0.0.0", "::")
"""What a process is bound to that listens on all."""
_BEARER = HTTPBearer(scheme_name="control key", auto_error=False)
_FRAMES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Frames: a length (u64, little-endian), then as many bytes of a safetensors buffer.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        "headers": {"ETag": {"description": "The generation to ack.", "schema": {"type": "string"}}},
    }
}
_EXPOSITION: dict[int | str, dict[str, Any]] = {
    200: {"description": "Prometheus text.", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


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
        if not key_fits(request.headers.get("authorization", ""), config.control_key):
            raise UnauthorizedError(UNAUTHORIZED, fix=UNAUTHORIZED_FIX)

    router = APIRouter(dependencies=[Depends(_BEARER), Depends(authorized)])
    _session_routes(router, sessions, pipeline, controller, base_url)
    _segment_routes(router, sessions)

    @router.post("/rollout/pause", responses=refusals(*SESSION, *BODY), response_model_exclude_defaults=True)
    async def pause(body: PauseBody) -> PausedView:
        if body.session_id is not None:
            sessions.live(body.session_id)
        result = await controller.pause(body.session_id, body.timeout_s, force=body.force)
        return PausedView(
            quiesced=result.quiesced,
            preempted=result.preempted,
            waiting=result.waiting,
            spared=result.spared,
        )

    @router.post("/rollout/resume", responses=refusals(*BODY, 409), response_model_exclude_defaults=True)
    async def resume(body: ResumeBody) -> RolloutView:
        controller.resume(body.version)
        return _rollout(controller)

    @router.get("/rollout", responses=refusals(), response_model_exclude_defaults=True)
    async def rollout() -> RolloutView:
        return _rollout(controller)

    @router.get("/metrics", response_class=Response, responses={**_EXPOSITION, **refusals()})
    async def exposition() -> Response:
        metrics.in_flight.set(controller.in_flight)
        return Response(metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


def health_router(
    config: ProxyConfig, store_writable: Callable[[], bool], engines: EnginePool, pipeline: Pipeline
) -> APIRouter:
    """Liveness and readiness; without the key they do not say where engines are."""
    router = APIRouter()

    @router.head("/health", include_in_schema=False)
    @router.get("/health")
    async def health() -> HealthView:
        return HealthView(status="ok")

    @router.head("/ready", include_in_schema=False)
    @router.get(
        "/ready",
        responses={503: {"model": ReadyView, "description": "Not ready: the same body says why."}},
        response_model_exclude_none=True,
    )
    async def ready(request: Request, response: Response) -> ReadyView:
        known = key_fits(request.headers.get("authorization", ""), config.control_key)
        states = dict(await engines.healthy(_PROBE_S))
        writable = store_writable()
        good = any(states.values()) and writable and not pipeline.draining
        response.status_code = 200 if good else 503
        return ReadyView(
            ready=good,
            engines=states if known else unnamed(states),
            store_writable=writable,
            draining=pipeline.draining,
            warnings=list(engines.warnings) if known else [],
        )

    return router


def _session_routes(
    router: APIRouter, sessions: Sessions, pipeline: Pipeline, controller: Controller, base_url: str
) -> None:
    @router.post("/sessions", status_code=201, responses=refusals(*BODY))
    async def open_session(body: OpenBody, request: Request) -> Opened:
        info = SessionInfo("", body.instance_id, body.group_id or "", body.rollout_id or "")
        session = sessions.open(
            info,
            sampling=body.sampling or Sampling(),
            limits=body.limits or Limits(),
            labels=body.labels or {},
            thinking=body.thinking or "keep",
        )
        url = f"{_reachable(base_url, request)}/s/{session.id}"
        return Opened(session_id=session.id, base_urls=BaseUrls(openai=f"{url}/v1", anthropic=url))

    @router.get("/sessions/{session_id}", responses=refusals(*SESSION))
    async def get_session(session_id: str) -> SessionView:
        session = sessions.find(session_id)
        tree = session.tree
        final = session.final
        return SessionView(
            session_id=session.id,
            instance_id=session.info.instance_id,
            group_id=session.info.group_id,
            rollout_id=session.info.rollout_id,
            state=session.state.value,
            steps=final.steps if final else len(tree),
            branches=final.branches if final else session.branches,
            tokens=final.sampled_tokens if final else tree.sampled_tokens,
            in_flight=pipeline.attempts.of(session.id),
            faults=session.faults,
            paused=controller.holds(session.id),
            generation=final.generation if final else None,
            expired=final is not None and final.expired,
            failure_class=final.failure_class.value if final else None,
            labels=dict(session.labels),
        )

    @router.post("/sessions/{session_id}/finalize", responses=refusals(*SESSION, *BODY))
    async def finalize(session_id: str, body: FinalizeBody | None = None) -> FinalizedView:
        body = body or FinalizeBody()
        final = await sessions.finalize(session_id, body.outcome, body.failure_class)
        return FinalizedView(
            segments=final.segments,
            trained_tokens=final.trained_tokens,
            lost_tokens=dict(final.lost_tokens),
            sampled_tokens=final.sampled_tokens,
            generation=final.generation,
            failure_class=final.failure_class.value,
        )

    @router.delete("/sessions/{session_id}", status_code=204, responses=refusals(*SESSION))
    async def delete(session_id: str) -> Response:
        await sessions.delete(session_id)
        return Response(status_code=204)


def _segment_routes(router: APIRouter, sessions: Sessions) -> None:
    @router.get(
        "/sessions/{session_id}/segments",
        response_class=Response,
        responses={**_FRAMES, **refusals(*SESSION, 409)},
    )
    async def segments(session_id: str) -> Response:
        trajectory = sessions.trajectory(session_id)
        return Response(
            write_frames(segment_to_bytes(segment) for segment in trajectory.segments),
            media_type="application/octet-stream",
            headers={"ETag": f'"{trajectory.generation}"'},
        )

    @router.post("/sessions/{session_id}/ack", status_code=204, responses=refusals(*SESSION, *BODY, 409))
    async def ack(session_id: str, body: AckBody) -> Response:
        sessions.ack(session_id, body.generation)
        return Response(status_code=204)


def _reachable(base_url: str, request: Request) -> str:
    """The data plane's address for whoever opens a session. A proxy that listens on every address of its
    machine has none of its own: it is where it was asked."""
    parts = urlsplit(base_url)
    if parts.hostname not in EVERY_ADDRESS:
        return base_url
    try:
        asked = request.url.hostname
    except ValueError:  # a Host that is none
        asked = None
    host = f"[{asked}]" if asked and ":" in asked else asked
    return parts._replace(netloc=f"{host}:{parts.port}").geturl() if host else base_url


def _rollout(controller: Controller) -> RolloutView:
    state = controller.state
    return RolloutView(
        state="paused" if state.paused else "running",
        version=state.version if state.version >= 0 else None,
        in_flight=controller.in_flight,
        waiting=controller.waiting,
        paused_sessions=len(state.sessions),
    )
