"""Replies leave in one write, whole and in order."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Iterable
from typing import Any

import httpx
import pytest
from dressage_proxy.asgi import watching
from dressage_proxy.serving import OneWrite, Stop, allow_open_files, http_server, serving


class Transport:
    """Notes what is done to it."""

    def __init__(self) -> None:
        self.done: list[object] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def close(self) -> None:
        self.done.append("closed")
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str) -> str:
        return name


async def test_what_is_written_in_one_round_leaves_as_one() -> None:
    inner = Transport()
    outer: Any = OneWrite(inner, asyncio.get_running_loop())  # type: ignore[arg-type]
    outer.write(b"head")
    outer.write(b"body")
    assert inner.done == []
    await asyncio.sleep(0)
    assert inner.done == [b"headbody"]
    outer.write(b"more")
    outer.close()
    await asyncio.sleep(0)
    assert inner.done == [b"headbody", b"more", "closed"]
    outer.write(b"too late")
    await asyncio.sleep(0)
    assert inner.done[-1] == "closed"
    assert outer.get_extra_info("peername") == "peername"


@pytest.mark.parametrize(
    "parts", [[b"one"], [b"one", b"two", b""], [b"x" * 3_000_000, b"y" * 3_000_000, b"z"]]
)
async def test_replies_arrive_whole(parts: Iterable[bytes]) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        *first, last = parts
        for part in first:
            await send({"type": "http.response.body", "body": part, "more_body": True})
            await asyncio.sleep(0.001)
        await send({"type": "http.response.body", "body": last})

    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with serving([(http_server(app), listener)]), httpx.AsyncClient(base_url=url) as client:
            for headers in ({}, {}, {"connection": "close"}):
                assert (await client.post("/", content=b"{}", headers=headers)).content == b"".join(parts)


@pytest.mark.parametrize("extended", [True, False], ids=["our server", "any server"])
@pytest.mark.parametrize("size", [2, 60_000, 300_000])
async def test_a_client_that_goes_while_it_waits_is_noticed_whatever_it_had_sent(
    size: int, extended: bool
) -> None:
    """A server stops reading from a connection whose body piles up: it must read on to see the end."""
    reading, noticed = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        read = 0
        while read < size:
            reading.set()
            read += len((await receive())["body"])
        if not extended:
            del scope["extensions"]
        with watching(scope, receive) as gone:
            assert not gone.done()
            reading.set()
            await gone
        noticed.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with serving([(http_server(app), listener)]):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size)
            await reading.wait()
            reading.clear()
            writer.write(b"x" * size)
            await asyncio.wait_for(reading.wait(), 30)
            await asyncio.sleep(0.01)
            assert not noticed.is_set()
            writer.close()
            await asyncio.wait_for(noticed.wait(), 30)


async def test_only_a_second_signal_means_at_once_whoever_else_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Stop()
    stop.asked.set()  # by the parent of a shard
    stop.ask()
    stop.ask()
    assert not stop.at_once.is_set(), "one wish, passed on by two"
    monkeypatch.setattr("dressage_proxy.serving._SAME_WISH_S", -1.0)
    stop.ask()
    assert stop.at_once.is_set()


@pytest.mark.parametrize(
    ("soft", "hard", "becomes", "told"),
    [
        (256, 10**6, 712, False),
        (1024, 10**6, 1024, False),
        (256, 600, 600, True),
        (256, resource.RLIM_INFINITY, 712, False),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, resource.RLIM_INFINITY, False),
    ],
)
def test_there_are_files_for_every_reply_in_the_making_or_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    soft: int,
    hard: int,
    becomes: int,
    told: bool,
) -> None:
    limits = [soft, hard]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.__setitem__(slice(None), new))
    allow_open_files(100)
    assert limits == [becomes, hard]
    assert ("ulimit -n" in caplog.text) is told
