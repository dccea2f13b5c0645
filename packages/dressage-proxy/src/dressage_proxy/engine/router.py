"""Engines that a sglang-router knows: it is asked for its workers alone, calls go to them directly.

The router drops fields of /generate that the evidence needs, and it cannot abort a call.
"""

from __future__ import annotations

import orjson

from dressage_proxy.engine.urls import base_url
from dressage_proxy.errors import RouterError


def workers(body: bytes) -> tuple[str, ...]:
    """The base URLs of the healthy, regular workers in a reply to ``GET /workers``, sorted.

    Raises RouterError for a body that is none, and names workers that cannot be called over HTTP.
    """
    try:
        reply = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RouterError(f"the router's /workers is no JSON: {error}") from error
    found = reply.get("workers") if isinstance(reply, dict) else None
    if not isinstance(found, list):
        raise RouterError("the router's reply has no list of workers: is this a sglang-router?")
    return tuple(sorted({url for worker in found if (url := _usable(worker))}))


def _usable(worker: object) -> str:
    if not isinstance(worker, dict):
        raise RouterError("the router's list of workers holds something else")
    if worker.get("is_healthy") is False or worker.get("worker_type", "regular") != "regular":
        return ""  # one half of a disaggregated pair is no engine that answers /generate alone
    try:
        return base_url(str(worker.get("url", "")))
    except ValueError as error:
        raise RouterError(f"the router has a worker that is not reached over http: {error}") from error
