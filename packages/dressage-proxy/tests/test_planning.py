"""Where a turn is encoded changes nothing."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from dressage_proxy import pipeline
from dressage_tito import ChatCodec

LONG = "a long tool r\u00e9sult " * 100
"""Texts of ASCII are encoded at once, word by word."""


async def conversation(rig: Any) -> list[list[int]]:
    """The ids that the engine was sent in two turns of each of two sessions at once."""

    async def one(name: str) -> None:
        session = await rig.open()
        messages: list[Any] = [{"role": "user", "content": f"{name} {LONG}"}]
        for turn in range(2):
            reply = await rig.chat(session, *messages)
            messages += [reply.choices[0].message, {"role": "user", "content": f"{turn} {name} {LONG}"}]
        await rig.end(session)

    first = len(rig.engine.requests)
    await asyncio.gather(one("x"), one("y"))
    return sorted(call.input_ids for call in rig.engine.requests[first:])


async def test_a_busy_proxy_encodes_in_threads_to_the_same_ids(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[threading.Thread] = set()
    for name in ("start", "extend"):
        plain = getattr(ChatCodec, name)

        def noted(self: ChatCodec, *args: Any, plain: Any = plain, **kwargs: Any) -> Any:
            threads.add(threading.current_thread())
            return plain(self, *args, **kwargs)

        monkeypatch.setattr(ChatCodec, name, noted)
    rig.script("same reply")
    here = await conversation(rig)
    assert threads == {threading.main_thread()}
    threads.clear()
    monkeypatch.setattr(pipeline, "_BUSY_SESSIONS", 0)
    assert await conversation(rig) == here
    assert threading.main_thread() not in threads
    threads.clear()
    monkeypatch.setitem(globals(), "LONG", "plain words " * 200)
    await conversation(rig)
    assert threads == {threading.main_thread()}
