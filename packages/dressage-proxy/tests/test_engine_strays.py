"""An engine that answers one call twice: the second answer must not become another call's tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import numpy as np
import orjson
import pytest
from dressage_proxy.engine.client import EngineClient
from dressage_proxy.engine.prompt import Prompt
from dressage_proxy.engine.wire import Call
from dressage_proxy.errors import PassingEngineError

Rid = Callable[[list[str]], str]
"""What a reply calls itself, of the rids that were asked so far."""


def call(rid: str) -> Call:
    return Call(rid, Prompt.of(np.array([1, 2, 3], np.int32)), {})


class Engine:
    """Answers each /generate at once, under a name that the test chooses."""

    def __init__(self, named: Rid) -> None:
        self.named = named
        self.rids: list[str] = []
        self.connections = 0
        self._handlers: set[asyncio.Task[None] | None] = set()

    @asynccontextmanager
    async def asked(self) -> AsyncIterator[Callable[[str], Awaitable[list[int]]]]:
        """One call by its rid, over a client of its own; yields what it samples."""
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with EngineClient(timeout_s=5) as client:

            async def ask(rid: str) -> list[int]:
                one = call(rid)
                result = await client.result(url, one, await client.begin(url, one))
                return [int(token) for token in result.output_ids]

            yield ask
        server.close()
        await asyncio.gather(*(task for task in self._handlers if task is not None))

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._handlers.add(asyncio.current_task())
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                body = await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
                self.rids.append(orjson.loads(body)["rid"])
                reply = self._reply()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(reply), reply))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    def _reply(self) -> bytes:
        token = 100 + len(self.rids)
        meta = {
            "id": self.named(self.rids),
            "finish_reason": {"type": "stop", "matched": token},
            "output_token_logprobs": [[-0.5, token, None]],
            "weight_version": "0",
        }
        return orjson.dumps({"output_ids": [token], "meta_info": meta})


async def test_another_calls_reply_is_no_reply_and_its_connection_is_closed() -> None:
    engine = Engine(lambda rids: rids[-2] if len(rids) == 2 else rids[-1])
    async with engine.asked() as ask:
        assert await ask("a" * 32) == [101]
        with pytest.raises(PassingEngineError, match=f"{'b' * 32} with the reply to {'a' * 32}") as caught:
            await ask("b" * 32)
        assert caught.value.lost, "the right reply may be in the making: the engine is told to stop"
        assert await ask("c" * 32) == [103]
    assert engine.connections == 2


async def test_an_engine_may_give_its_replies_names_of_its_own() -> None:
    engine = Engine(lambda rids: "generated")
    async with engine.asked() as ask:
        assert [await ask(f"{number:032x}") for number in range(2)] == [[101], [102]]
    assert engine.connections == 1
