"""The HTTP surface: authorisation, shapes, errors; and the service behind it."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from dressage_blackbox_server import (
    FileJournal,
    JournalError,
    MemoryJournal,
    RequestError,
    ServerError,
    ServerFullError,
    SessionConfig,
    SessionExistsError,
    UnknownAgentError,
    UnknownSessionError,
    known_agents,
)
from dressage_blackbox_server import errors as error_module
from dressage_blackbox_server.client import BlackboxClient
from dressage_blackbox_server.server import build_app
from dressage_blackbox_server.service import BlackboxService
from dressage_blackbox_server.wire import STATUS, error_of, status_of

KEY = "the-key"


@pytest.fixture
async def http(executor):
    service = BlackboxService(lambda config: executor, known_agents(), MemoryJournal(), max_sessions=2)
    transport = httpx.ASGITransport(build_app(service, KEY))
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://bb", headers=headers) as client:
        yield client
    await service.aclose()


@pytest.fixture
def client(http):
    return BlackboxClient(http, "http://bb", KEY)


@pytest.mark.parametrize("given", ["", "Bearer wrong", "Bearer ", "Basic the-key", "Bearer thé"])
async def test_every_path_but_health_asks_for_the_key(http, given):
    headers = {"authorization": given.encode()}
    for method, path in (
        ("GET", "/agents"),
        ("POST", "/sessions"),
        ("GET", "/sessions/x"),
        ("DELETE", "/sessions/x"),
        ("POST", "/sessions/x/turns"),
        ("GET", "/sessions/x/turns/y"),
        ("POST", "/sessions/x/turns/y/cancel"),
    ):
        reply = await http.request(method, path, headers=headers)
        assert (reply.status_code, reply.json()["error"]["code"]) == (401, "unauthorized")
    assert (await http.get("/health", headers=headers)).json() == {"ok": True}


async def test_an_empty_key_is_refused_at_start():
    with pytest.raises(RequestError, match="key"):
        build_app(BlackboxService(lambda c: None, {}, MemoryJournal()), "")


async def test_a_session_is_created_once_and_found_again(http, client, config):
    body = {"config": config.model_dump(mode="json"), "session_id": "s1"}
    assert [(await http.post("/sessions", json=body)).status_code for _ in range(2)] == [201, 200]
    assert (await client.session("s1")).config == config
    with pytest.raises(SessionExistsError):
        await client.create(config.model_copy(update={"model": "other"}), "s1")


async def test_what_was_drawn_at_random_for_an_earlier_request_is_no_other_configuration(http, client):
    body = {"config": {"agent": "command", "openai_url": "http://x/v1", "args": ["a"]}, "session_id": "s1"}
    assert [(await http.post("/sessions", json=body)).status_code for _ in range(2)] == [201, 200]
    config = SessionConfig(agent="command", openai_url="http://x/v1", args=("a",))
    kept = (await client.session("s1")).config.session_uuid
    assert (await client.create(config, "s1")).config.session_uuid == kept  # a client that began anew
    with pytest.raises(SessionExistsError):
        await client.create(config.model_copy(update={"args": ("b",)}), "s1")
    named = config.model_dump(mode="json") | {"session_uuid": "another"}
    assert (await http.post("/sessions", json={"config": named, "session_id": "s1"})).status_code == 409


async def test_a_running_turn_is_a_202_and_a_final_one_a_200(http, client, executor, config):
    executor.gate = asyncio.Event()
    await client.create(config, "s1")
    path = "/sessions/s1/turns"
    reply = await http.post(path, json={"turn_id": "t1", "prompt": "x"})
    assert reply.status_code == 202
    assert reply.json()["state"] in ("queued", "inflight")
    await executor.started.wait()
    assert (await http.get(f"{path}/t1")).status_code == 202
    executor.gate.set()
    reply = await http.get(f"{path}/t1?wait_s=5")
    assert (reply.status_code, reply.json()["state"], reply.json()["output"]) == (200, "committed", "done")


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "field"),
    [
        ("POST", "/sessions", b"not json", 400, None),
        ("POST", "/sessions", b"{}", 400, "config"),
        ("POST", "/sessions", b'{"config": {"agent": "command"}}', 400, "config.openai_url"),
        (
            "POST",
            "/sessions",
            b'{"config": {"agent": "command", "openai_url": "http://h/v1", "x": 1}}',
            400,
            "config.x",
        ),
        ("POST", "/sessions", b'{"config": {"agent": "no", "openai_url": "http://h/v1"}}', 400, None),
        ("POST", "/sessions/s1/turns", b'{"turn_id": "a/b", "prompt": "x"}', 400, "turn_id"),
        ("POST", "/sessions/s1/turns", b'{"turn_id": "t", "prompt": "x", "wait_s": 1e9}', 400, "wait_s"),
        ("POST", "/sessions/s1/turns", b'{"turn_id": "t", "prompt": ""}', 400, None),
        ("GET", "/sessions/s1/turns/t?wait_s=nan", b"", 400, "wait_s"),
        ("GET", "/sessions/s1/turns/t", b"", 404, None),
        ("GET", "/sessions/nope", b"", 404, None),
    ],
)
async def test_bad_requests_are_named(http, client, config, method, path, content, status, field):
    await client.create(config, "s1")
    reply = await http.request(method, path, content=content)
    assert reply.status_code == status, reply.text
    assert reply.json()["error"].get("field") == field
    assert reply.json()["error"]["message"]


async def test_delete_is_idempotent_and_ends_what_runs(http, client, executor, config):
    executor.gate = asyncio.Event()
    await client.create(config, "s1")
    await http.post("/sessions/s1/turns", json={"turn_id": "t1", "prompt": "x"})
    await executor.started.wait()
    await client.delete("s1")
    await client.delete("s1")
    assert executor.cancelled == 1
    with pytest.raises(UnknownSessionError):
        await client.session("s1")


async def test_too_many_sessions_are_a_typed_refusal(client, config):
    await client.create(config, "s1")
    await client.create(config, "s2")
    with pytest.raises(ServerFullError, match="2 sessions"):
        await client.create(config, "s3")
    await client.delete("s1")
    await client.create(config, "s3")


async def test_known_agents_are_listed_with_how_to_install_them(http):
    rows = (await http.get("/agents")).json()["agents"]
    assert {row["name"] for row in rows} == {"command", "claude_code", "codex", "openclaw", "opencode"}
    assert all(row["install"] for row in rows)


async def test_what_is_no_blackbox_server_is_said(config):
    def other(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200 if request.method == "GET" else 502, text="<html>")

    async with httpx.AsyncClient(transport=httpx.MockTransport(other)) as http:
        client = BlackboxClient(http, "http://other", KEY)
        with pytest.raises(ServerError, match="502"):
            await client.create(config, "s1")
        with pytest.raises(ServerError, match="contract"):
            await client.session("s1")


def test_every_error_with_a_status_comes_back_as_itself():
    for kind, (status, code) in STATUS.items():
        assert status_of(kind("m")) == (status, code)
        assert type(error_of(code, "m")) is kind
    assert status_of(error_module.ExecutorError("m")) == (500, "internal")


async def test_a_restart_finds_sessions_and_turns_again(tmp_path, executor, config):
    first = BlackboxService(lambda c: executor, known_agents(), FileJournal(tmp_path))
    session, _ = first.create(config, "s1")
    done = await session.turn("t1", "one")
    second = BlackboxService(lambda c: executor, known_agents(), FileJournal(tmp_path))
    assert second.get("s1").get("t1") == done
    assert await second.get("s1").turn("t1", "one") == done
    await second.delete("s1")
    assert FileJournal(tmp_path).load() == {}


async def test_a_journal_without_its_first_line_is_refused_and_an_empty_one_dropped(
    tmp_path, executor, config
):
    (tmp_path / "s1.jsonl").write_bytes(b"")
    service = BlackboxService(lambda c: executor, known_agents(), FileJournal(tmp_path))
    with pytest.raises(UnknownSessionError):
        service.get("s1")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "s2.jsonl").write_text(
        '{"turn":{"turn_id":"t","index":0,"prompt_digest":"","state":"queued"}}\n'
    )
    with pytest.raises(JournalError, match="s2"):
        BlackboxService(lambda c: executor, known_agents(), FileJournal(tmp_path))


async def test_an_unknown_agent_is_refused_with_the_known_ones(executor, config):
    service = BlackboxService(lambda c: executor, known_agents(), MemoryJournal())
    with pytest.raises(UnknownAgentError, match="known: claude_code, codex, command"):
        service.create(config.model_copy(update={"agent": "other"}))
