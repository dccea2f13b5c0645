"""The control plane against its own OpenAPI description: generated requests, right and wrong ones.

DRESSAGE_SCHEMA_EXAMPLES=2000 makes so many for each operation.
"""

import functools
import os

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

KEY = "control-key-of-these-tests"
AUTH = {"Authorization": f"Bearer {KEY}"}
EXAMPLES = int(os.environ.get("DRESSAGE_SCHEMA_EXAMPLES", "5"))
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
FULL_SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def served(spawn, toy_folder, tmp_path, shards):
    engine = spawn("dressage_proxy.engine.scripted").ready["url"]
    arguments = ["--tokenizer", toy_folder, "--engine", engine, "--store", tmp_path / "store", "--port", "0"]
    arguments += ["--shards", str(shards)]
    return spawn("dressage_proxy.cli", "serve", *arguments, "--log-level", "error", DRESSAGE_CONTROL_KEY=KEY)


def run(operation, mode, known):
    """Generated calls of one operation; half of those with a session id name one that exists."""
    sent = 0

    @FULL_SETTINGS
    @given(case=operation.as_strategy(generation_mode=mode))
    def calls(case):
        nonlocal sent
        sent += 1
        if "session_id" in (case.path_parameters or {}) and sent % 2:
            case.path_parameters["session_id"] = known[sent % len(known)]
        case.call_and_validate(headers=AUTH, checks=CHECKS, timeout=10)

    calls()
    return sent


@pytest.mark.heavy
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.filterwarnings("ignore")
def test_every_operation_answers_as_it_is_described(spawn, toy_folder, tmp_path, shards):
    proxy = served(spawn, toy_folder, tmp_path, shards)
    url = proxy.ready["control_url"]
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    with httpx.Client(base_url=url, headers=AUTH, timeout=10, trust_env=False) as http:
        sessions = [http.post("/sessions", json={"instance_id": "i"}).json()["session_id"] for _ in range(5)]
        http.post(f"/sessions/{sessions[0]}/finalize")
        total = 0
        for result in schema.get_all_operations():
            operation = result.ok()
            total += run(operation, GenerationMode.POSITIVE, sessions)
            if operation.body:  # any text is a session id: without a body there is nothing wrong to send
                total += run(operation, GenerationMode.NEGATIVE, sessions)
        assert total >= EXAMPLES * 8
        http.post("/rollout/resume", json={"version": 0})
        rollout = http.get("/rollout").json()
        assert (rollout["state"], rollout["in_flight"], rollout["waiting"]) == ("running", 0, 0)
        assert http.get("/ready").status_code == 200
    print(f"{total} requests")
    assert proxy.stop() == 0


async def test_the_description_names_every_route(rig):
    described = (await rig.http.get("/openapi.json")).json()
    assert {
        "/sessions", "/sessions/{session_id}", "/sessions/{session_id}/finalize", "/rollout", "/metrics",
        "/sessions/{session_id}/segments", "/sessions/{session_id}/ack", "/rollout/pause", "/rollout/resume",
        "/health", "/ready",
    } == set(described["paths"])  # fmt: skip
    assert {"HTTPValidationError", "ValidationError"}.isdisjoint(described["components"]["schemas"])
    for path, operations in described["paths"].items():
        for operation in operations.values():
            assert bool(operation.get("security")) == (path not in ("/health", "/ready")), path


BODIES = {
    "/sessions": {"instance_id": "i"},
    "/sessions/{session_id}/finalize": {},
    "/sessions/{session_id}/ack": {"generation": 1},
    "/rollout/pause": {"timeout_s": 0},
    "/rollout/resume": {"version": 1},
}


async def statuses(rig, method, path, named):
    """What an operation answers to whatever may be wrong; ``named`` are sessions open, ended,
    acked and deleted."""
    request = functools.partial(rig.http.request, method)
    body = BODIES.get(path)
    places = [path.replace("{session_id}", name) for name in (*named, "unknown")]
    places = places if "{" in path else [path]
    seen = {(await request(places[0], json=body, headers={"Authorization": ""})).status_code}
    if body is not None:
        json_type = {"content-type": "application/json"}
        for content in (b"{", b"[]", b"x" * 3000):
            seen.add((await request(places[0], content=content, headers=json_type)).status_code)
    for place in reversed(places):
        seen.add((await request(place, json=body)).status_code)
    if path == "/rollout/pause":
        for name in (*named[1:], "unknown"):
            seen.add((await request(path, json={"session_id": name, "timeout_s": 0})).status_code)
    if path == "/rollout/resume":
        seen.add((await request(path, json={"version": 0})).status_code)
    return seen


async def test_every_refusal_that_is_described_occurs_and_no_other(make_rig):
    """Those of a proxy that is full, being stopped or cannot store (503) have tests of their own."""
    rig = await make_rig(max_body_bytes=2000)
    for path, operations in (await rig.http.get("/openapi.json")).json()["paths"].items():
        for method, operation in operations.items():
            first, ended, acked, gone = [await rig.open() for _ in range(4)]
            for session in (ended, acked):
                await rig.http.post(f"/sessions/{session}/finalize")
            await rig.http.post(f"/sessions/{acked}/ack", json={"generation": 1})
            await rig.http.delete(f"/sessions/{gone}")
            seen = await statuses(rig, method, path, (first, ended, acked, gone))
            described = {int(status) for status in operation["responses"]} - {503}
            if path in ("/health", "/ready"):
                assert described == {200}
            else:
                assert seen == described, (method, path)
