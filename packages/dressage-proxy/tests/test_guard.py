"""The control plane's door: the key before the body, no body beyond its size, methods and schemes as HTTP has
them."""

import asyncio
import resource

import pytest
from dressage_proxy.guard import Guard, key_fits
from dressage_proxy.shards.forward import Peer
from hypothesis import given
from hypothesis import strategies as st

KEY = "the-key-of-these-tests"
BEARER = (b"authorization", f"Bearer {KEY}".encode())


async def asked(path, *pieces, headers=(BEARER,), limit=100, method="POST"):
    """What a guarded application read and what was answered."""
    read, sent = [], []
    coming = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    coming.append({"type": "http.request", "body": b"", "more_body": False})
    taken = iter(coming)

    async def receive():
        return next(taken)

    async def send(message):
        sent.append(message)

    async def app(scope, receive, send):
        while True:
            message = await receive()
            read.append(message)
            if message["type"] == "http.disconnect" or not message["more_body"]:
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    scope = {"type": "http", "path": path, "method": method, "headers": list(headers)}
    await Guard(app, KEY, limit)(scope, receive, send)
    return read, sent, len(list(taken))


@pytest.mark.parametrize(
    "path", ["/sessions", "/sessions/x/finalize", "/rollout/pause", "/rollout", "/metrics"]
)
async def test_without_the_key_not_one_byte_of_a_body_is_read(path):
    for headers in ((), ((b"authorization", b"Bearer wrong"),), ((b"authorization", KEY.encode()),)):
        read, sent, left = await asked(path, b"x" * 1000, headers=headers)
        assert read == []
        assert left == 2
        assert sent[0]["status"] == 401
        assert (b"www-authenticate", b"Bearer") in sent[0]["headers"]


@given(sizes=st.lists(st.integers(0, 60), max_size=6))
def test_a_body_is_read_up_to_its_limit_and_one_that_is_larger_is_refused_in_place_of_the_answer(sizes):
    read, sent, _ = asyncio.run(asked("/sessions", *(b"x" * size for size in sizes)))
    if sum(sizes) <= 100:
        assert sum(len(message["body"]) for message in read) == sum(sizes)
        assert [message.get("status") for message in sent] == [200, None]
    else:
        assert read[-1] == {"type": "http.disconnect"}
        assert sum(len(message.get("body", b"")) for message in read) <= 100
        assert [message.get("status") for message in sent] == [413, None]
        assert b'"code":"body_too_large"' in sent[1]["body"]


async def test_what_is_for_the_data_plane_passes():
    read, sent, _ = await asked("/s/x/v1/messages", b"x" * 1000, headers=())
    assert len(read[0]["body"]) == 1000
    assert sent[0]["status"] == 200


@pytest.mark.parametrize("path", ["/sessions_of_others", "/nothing", "/health"])
async def test_other_paths_need_no_key_and_have_the_same_limit(path):
    assert (await asked(path, b"x", headers=()))[1][0]["status"] == 200
    assert (await asked(path, b"x" * 101, headers=()))[1][0]["status"] == 413


def test_the_scheme_is_bearer_in_any_case_and_the_key_is_whole():
    for good in (f"Bearer {KEY}", f"bearer {KEY}", f"BEARER  {KEY} "):
        assert key_fits(good, KEY)
    for bad in (
        "",
        "Bearer",
        KEY,
        f"Basic {KEY}",
        f"Bearer{KEY}",
        f"Bearer {KEY}x",
        f"Bearer {KEY} {KEY}",
        "Bearer é",
    ):
        assert not key_fits(bad, KEY)


async def test_a_real_proxy_stays_small_under_large_bodies_of_strangers(rig):
    async def pieces():
        for _ in range(64):
            yield b"x" * 2**20

    rig.http.headers.pop("Authorization")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reply = await rig.http.post("/sessions", content=pieces(), headers={"content-type": "application/json"})
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40 * 1024, "KiB"


async def test_a_large_body_of_the_controllers_own_is_a_413(make_rig):
    rig = await make_rig(max_body_bytes=2000)
    for path in ("/sessions", "/rollout/pause", "/nothing"):
        reply = await rig.http.post(path, json={"instance_id": "x" * 3000})
        if path == "/nothing":
            assert reply.status_code == 404, "nobody reads it"
        else:
            assert reply.status_code == 413
            assert reply.json()["error"]["code"] == "body_too_large"


async def test_a_405_names_all_methods_of_its_path_and_no_slash_is_added_or_taken(rig):
    for method, path, allowed in (
        ("PUT", "/sessions", "POST"),
        ("POST", "/sessions/x", "DELETE, GET"),
        ("GET", "/sessions/x/ack", "POST"),
        ("DELETE", "/health", "GET, HEAD"),
    ):
        reply = await rig.http.request(method, path)
        assert (reply.status_code, reply.headers["allow"]) == (405, allowed)
    for path in ("/sessions/", "/rollout/", "/sessions/x/ack/"):
        reply = await rig.http.get(path, follow_redirects=False)
        assert reply.status_code == 404, "a redirect would go to whatever host the client named"
        assert reply.json()["error"]["code"] == "unknown_route"


async def test_a_body_that_is_passed_on_is_cut_after_what_its_peer_takes(tmp_path):
    """The peer refuses it in its own words, and nobody keeps all of it."""
    seen = []

    async def answer(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        seen.append((length, len(await reader.readexactly(length))))
        writer.write(b"HTTP/1.1 413 x\r\ndate: then\r\ncontent-length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    path = tmp_path / "peer.sock"
    server = await asyncio.start_unix_server(answer, path)
    coming = iter([{"type": "http.request", "body": b"x" * 60, "more_body": True}] * 5)
    sent = []

    async def receive():
        message = next(coming, None)
        if message is None:
            await asyncio.Event().wait()
        return message

    async def send(message):
        sent.append(message)

    peer = Peer(path, 100)
    headers = [(b"content-length", b"300"), (b"expect", b"100-continue")]
    await peer.forward({"method": "POST", "path": "/s/a", "headers": headers}, receive, send)
    await peer.close()
    server.close()
    assert seen == [(101, 101)]
    assert sent[0]["status"] == 413
    assert b"date" not in dict(sent[0]["headers"]), "the server here says its own"


async def test_a_request_is_passed_on_with_its_path_as_it_came(tmp_path):
    lines = []

    async def answer(reader, writer):
        lines.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
        writer.write(b"HTTP/1.1 404 x\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async def send(_):
        pass

    path = tmp_path / "peer.sock"
    server = await asyncio.start_unix_server(answer, path)
    peer = Peer(path, 100)
    for raw in (b"/s/x/../../sessions", b"/s/%2e%2e/x%2Fy", b"/s/x//v1/models"):
        scope = {
            "method": "GET",
            "path": raw.decode(),
            "raw_path": raw,
            "query_string": b"a=%2b+1",
            "headers": [],
        }
        coming = iter([{"type": "http.request", "body": b""}])

        async def receive(coming=coming):
            message = next(coming, None)
            return message or await asyncio.Event().wait()

        await peer.forward(scope, receive, send)
        assert lines.pop() == b"GET " + raw + b"?a=%2b+1 HTTP/1.1"
    await peer.close()
    server.close()


async def test_a_peer_that_has_ended_is_not_waited_for(tmp_path):
    peer = Peer(tmp_path / "nobody.sock", 100)
    peer.end()
    async with asyncio.timeout(15):
        with pytest.raises(OSError):
            await peer.ask("GET", "/rollout")
    await peer.close()
