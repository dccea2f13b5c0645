import asyncio
import json
import math
import pickle
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import numpy as np
import pytest
from dressage_proxy.app import Proxy, running
from dressage_proxy.client import ControlError, ProxyClient
from dressage_proxy.config import ProxyConfig
from dressage_proxy.engine.scripted import ScriptedEngine, serve_scripted
from dressage_proxy.errors import ProxyError
from dressage_segments import BufferFormatError
from dressage_store import MemoryStore
from dressage_tito import ChatCodec
from dressage_tito.toy import write_toy_tokenizer

KEY = "a control key of tests"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


class Rig:
    """A real proxy over a scripted engine, reached without sockets on its own side."""

    def __init__(self, proxy: Proxy, engine: ScriptedEngine) -> None:
        app = proxy.app("http://proxy")
        self.engine = engine
        self.transport = httpx.ASGITransport(app=app)
        self.control = ProxyClient("http://proxy", KEY, transport=self.transport)
        self.agent = httpx.AsyncClient(transport=self.transport)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_tokenizer(tmp_path_factory.mktemp("toy"))


@pytest.fixture
async def rig(tokenizer: Path, tmp_path: Path) -> AsyncIterator[Rig]:
    engine = ScriptedEngine()
    async with serve_scripted(engine) as url:
        config = ProxyConfig(tokenizer=tokenizer, engines=(url,), store=tmp_path, control_key=KEY)
        proxy = Proxy.build(config, MemoryStore(), ChatCodec.from_folder(tokenizer))
        async with running(proxy):
            made = Rig(proxy, engine)
            async with made.control, made.agent:
                yield made


def answering(reply: httpx.Response | Exception) -> ProxyClient:
    """A client of something that always gives this reply."""

    def handler(_: httpx.Request) -> httpx.Response:
        if isinstance(reply, Exception):
            raise reply
        return reply

    return ProxyClient("http://proxy", KEY, patience_s=0, transport=httpx.MockTransport(handler))


def failing(*first: Exception | httpx.Response) -> tuple[ProxyClient, list[str]]:
    """A client of a proxy that fails so at first, and the paths that it was asked."""
    left, asked = list(first), []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        failure = left.pop(0) if left else httpx.Response(200, json=ANYTHING)
        if isinstance(failure, Exception):
            raise failure
        return failure

    return ProxyClient("http://proxy", KEY, transport=httpx.MockTransport(handler)), asked


ANYTHING = {
    "session_id": "s", "base_urls": {"openai": "o", "anthropic": "a"}, "segments": 0, "trained_tokens": 0,
    "lost_tokens": {}, "quiesced": True, "preempted": 0, "waiting": 0,
}  # fmt: skip
RESTARTS = {"error": {"code": "shard_unavailable", "message": "ask again"}}


@pytest.mark.parametrize(
    "failure", [httpx.ConnectError("refused"), httpx.ReadError("reset"), httpx.Response(503, json=RESTARTS)]
)
async def test_a_proxy_that_restarts_is_asked_again(failure: Exception | httpx.Response) -> None:
    client, asked = failing(failure, httpx.ConnectError("refused"))
    async with client:
        await client.finalize("s")
        await client.delete("s")
    assert asked == ["/sessions/s/finalize"] * 3 + ["/sessions/s"]


async def test_a_session_is_opened_again_only_where_the_first_request_did_not_arrive() -> None:
    client, asked = failing(httpx.ConnectError("refused"), httpx.ReadError("reset"))
    async with client:
        with pytest.raises(ControlError) as failed:
            await client.open(instance_id="i")
    assert (failed.value.code, len(asked)) == ("unreachable", 2)


async def test_a_closed_client_fails_at_once_also_with_what_it_would_ask_again() -> None:
    client, asked = failing(httpx.ConnectError("refused"))
    async with client:
        finalizing = asyncio.create_task(client.finalize("s"))
        while not asked:
            await asyncio.sleep(0)
    for asking in (finalizing, client.open(instance_id="i")):
        with pytest.raises(ControlError) as failed:
            await asking
        assert failed.value.code == "closed"
    assert not await client.health()
    assert asked == ["/sessions/s/finalize"]


async def test_what_another_try_does_not_mend_is_told_at_once() -> None:
    full = {"error": {"code": "too_many_sessions", "message": "full"}}
    for reply in (httpx.Response(503, json=full), httpx.Response(409), httpx.ReadTimeout("slow")):
        client, asked = failing(reply)
        async with client:
            with pytest.raises(ControlError):
                await client.finalize("s")
        assert len(asked) == 1


async def test_a_session_is_opened_used_finalised_read_and_acked(rig: Rig) -> None:
    session = await rig.control.open(
        instance_id="i", group_id="g", rollout_id="r", sampling={"temperature": 0.5}, labels={"a": "b"}
    )
    assert session.openai_url == f"http://proxy/s/{session.session_id}/v1"
    assert session.anthropic_url == f"http://proxy/s/{session.session_id}"
    answer = await rig.agent.post(f"{session.openai_url}/chat/completions", json=HELLO)
    assert answer.status_code == 200, answer.text
    sampled = rig.engine.requests[0]
    assert sampled.sampling_params["temperature"] == 0.5
    assert (await rig.control.get(session.session_id))["steps"] == 1

    ended = await rig.control.finalize(session.session_id, outcome={"reward": 1.0}, failure_class="completed")
    assert (ended.segments, ended.trained_tokens, ended.lost_tokens) == (1, len(sampled.output_ids), {})
    again = await rig.control.finalize(session.session_id)
    assert again == ended

    generation, segments = await rig.control.segments(session.session_id)
    assert segments[0].token_ids.tolist() == [*sampled.input_ids, *sampled.output_ids]
    assert (segments[0].group_id, segments[0].rollout_id, segments[0].instance_id) == ("g", "r", "i")
    assert (await rig.control.segments(session.session_id))[0] == generation
    await rig.control.ack(session.session_id, generation)
    await rig.control.ack(session.session_id, generation)
    with pytest.raises(ControlError) as gone:
        await rig.control.segments(session.session_id)
    assert gone.value.status == 410


async def test_pause_resume_and_rollout_speak_of_what_is_in_flight(rig: Rig) -> None:
    rig.engine.hold_after = 2
    session = await rig.control.open(instance_id="i")
    call = asyncio.create_task(rig.agent.post(f"{session.openai_url}/chat/completions", json=HELLO))
    await rig.engine.until_running(1)
    assert (await rig.control.rollout())["in_flight"] == 1
    paused = await rig.control.pause(session.session_id, timeout_s=5)
    assert (paused.quiesced, paused.preempted) == (True, 1)
    await rig.engine.release()
    await rig.control.resume(3)
    assert (await call).status_code == 200
    assert (await rig.control.rollout())["version"] == 3
    assert (await rig.control.pause(timeout_s=0)).quiesced


async def test_a_deleted_session_is_gone(rig: Rig) -> None:
    session = await rig.control.open(instance_id="i")
    await rig.control.delete(session.session_id)
    with pytest.raises(ControlError) as gone:
        await rig.control.finalize(session.session_id)
    assert gone.value.status == 410
    assert gone.value.code == "session_finished"


async def test_a_refusal_names_status_code_field_and_fix(rig: Rig) -> None:
    with pytest.raises(ControlError) as refused:
        await rig.control.open(instance_id="i", sampling={"temprature": 1})
    assert refused.value.status == 422
    assert "temprature" in str(refused.value.field)
    assert refused.value.fix
    with pytest.raises(ControlError, match="404"):
        await rig.control.get("no/such session")


async def test_the_wrong_key_is_a_401(rig: Rig) -> None:
    async with ProxyClient("http://proxy", "wrong key of tests", transport=rig.transport) as client:
        with pytest.raises(ControlError) as refused:
            await client.open(instance_id="i")
    assert refused.value.status == 401


async def test_readiness_follows_the_engine(rig: Rig) -> None:
    assert await rig.control.health()
    assert await rig.control.ready()
    rig.engine.healthy = False
    assert not await rig.control.ready()


async def test_no_answer_is_a_control_error_with_status_0_and_not_ready() -> None:
    async with answering(httpx.ConnectError("refused")) as client:
        assert not await client.ready()
        assert not await client.health()
        with pytest.raises(ControlError) as failed:
            await client.rollout()
    assert (failed.value.status, failed.value.code) == (0, "unreachable")


@pytest.mark.parametrize(
    "reply",
    [
        httpx.Response(502, text="<html>bad gateway</html>"),
        httpx.Response(200, text="no json"),
        httpx.Response(200, json=[1]),
        httpx.Response(500, json={"error": "words"}),
    ],
)
async def test_a_stranger_behind_the_address_is_a_control_error(reply: httpx.Response) -> None:
    async with answering(reply) as client:
        with pytest.raises(ControlError) as failed:
            await client.rollout()
    assert failed.value.status == reply.status_code
    assert failed.value.code == "bad_reply"


@pytest.mark.parametrize(
    "reply",
    [{}, {"session_id": None, "base_urls": None, "segments": None, "quiesced": "x", "preempted": "x"}],
)
async def test_an_object_that_this_proxy_would_not_say_is_a_control_error(reply: dict[str, object]) -> None:
    async with answering(httpx.Response(200, json=reply)) as client:
        for asking in (client.open(instance_id="i"), client.finalize("s"), client.pause()):
            with pytest.raises(ControlError) as failed:
                await asking
            assert (failed.value.status, failed.value.code) == (200, "bad_reply")


async def test_what_json_cannot_say_is_refused_before_it_is_sent() -> None:
    """A reward that is NaN once arrived as null."""
    client, asked = failing()
    deep: list[object] = []
    deep.append(deep)
    async with client:
        for value in (math.nan, np.float32("inf"), np.array([1, np.nan]), {1, 2}, object(), deep):
            with pytest.raises(ControlError, match="/sessions/s/finalize") as failed:
                await client.finalize("s", outcome={"reward": value})
            assert failed.value.code == "invalid_field"
        assert not asked
        for value in (np.float32(0.5), np.arange(2), datetime.now(UTC), None, "\N{SNOWMAN}"):
            await client.finalize("s", outcome={"reward": value})


async def test_a_pause_does_not_stand_behind_hundreds_of_sessions_that_end() -> None:
    held, waiting = asyncio.Event(), []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(re.findall(rb"(?i)content-length: (\d+)", head)[0]))
        if b"/finalize" in head:
            waiting.append(head)
            await held.wait()
        said = json.dumps(ANYTHING).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(said))
        writer.write(said)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1000)
    port = server.sockets[0].getsockname()[1]
    async with ProxyClient(f"http://127.0.0.1:{port}", KEY, timeout_s=60) as client:
        ending = [asyncio.create_task(client.finalize(str(n))) for n in range(150)]
        async with asyncio.timeout(30):
            while len(waiting) < 100:
                await asyncio.sleep(0.01)
            assert (await client.pause()).quiesced
        held.set()
        await asyncio.gather(*ending)
    server.close()
    await server.wait_closed()


async def test_segments_without_a_generation_or_with_a_torn_frame_are_refused() -> None:
    async with answering(httpx.Response(200, content=b"")) as client:
        with pytest.raises(ControlError, match="ETag"):
            await client.segments("s")
    torn = httpx.Response(200, content=b"\x09\0\0\0\0\0\0\0abc", headers={"ETag": '"1"'})
    async with answering(torn) as client:
        with pytest.raises(BufferFormatError):
            await client.segments("s")


def test_a_control_error_is_a_proxy_error_that_pickles() -> None:
    error = ControlError(409, "conflict", "words", "generation", "read again")
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, ProxyError)
    assert (copy.status, copy.code, copy.field, copy.fix) == (409, "conflict", "generation", "read again")
    assert str(copy) == "409 conflict: words (field generation); read again"
