"""Passing requests on between the processes of one proxy."""

import asyncio
import logging
import socket

import httpx
import pytest
from dressage_proxy import ProxyConfig
from dressage_proxy.gate import GateFile
from dressage_proxy.serving import http_server, serving
from dressage_proxy.shards.dispatch import Dispatcher
from dressage_proxy.shards.forward import Peer
from dressage_proxy.shards.supervisor import Supervisor


async def test_a_peer_that_ends_in_the_middle_of_a_reply_breaks_the_clients_connection_off(tmp_path, caplog):
    """The client must not take what came for a whole reply; the log has a line of it."""

    async def dying(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\ndata:\r\n")
        await writer.drain()
        writer.transport.abort()

    async def passed_on(scope, receive, send):
        await peer.forward(scope, receive, send)

    path = tmp_path / "0.sock"
    peer = Peer(path, 1024)
    async with await asyncio.start_unix_server(dying, path):
        listener = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with (
            serving([(http_server(passed_on), listener)]),
            httpx.AsyncClient(trust_env=False) as http,
        ):
            with pytest.raises(httpx.RemoteProtocolError):
                await http.get(f"{url}/s/a/v1/models")
    await peer.close()
    ours = [record for record in caplog.records if record.name == "dressage.proxy"]
    assert [record.levelno for record in ours] == [logging.WARNING]
    assert not any(record.exc_info for record in caplog.records)


async def test_a_client_whose_shard_takes_no_connection_is_told_to_come_again(
    tmp_path, toy_folder, monkeypatch
):
    monkeypatch.setattr("dressage_proxy.shards.shard._HANDOVER_S", 0.05)
    config = ProxyConfig(
        tokenizer=toy_folder, engines=("http://e:1",), store=tmp_path, control_key="k" * 20, shards=2
    )
    supervisor = Supervisor(config, tmp_path, ["true"], "KEY", GateFile(tmp_path / "gate.json"))

    async def give(connection, path):
        await supervisor.give(connection, path, None)

    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    accepting = asyncio.create_task(Dispatcher(listener, give).serve())
    async with httpx.AsyncClient(trust_env=False) as http:
        for path in ("/s/abc/v1/messages", "/s/abc/v1/chat/completions"):
            reply = await http.post(f"{url}{path}", json={"messages": []})
            assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
            assert reply.json()["error"]["code"] == "shard_unavailable"
            assert reply.headers["connection"] == "close"
    accepting.cancel()
    await asyncio.gather(accepting, return_exceptions=True)
    listener.close()
