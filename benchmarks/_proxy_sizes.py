"""What the proxy keeps of sessions, in memory and on disk, and how long it takes to read them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from dressage_proxy.client import ProxyClient

from benchmarks._proxy_rig import Chat, Http, Proxied, Texts, chats, proxy, small_tokenizer_folder

FILLING = 24
MIB = 2**20


async def grown(chat: Chat, tokens: int) -> Chat:
    while chat.tokens < tokens:
        await chat.turn()
    return chat


async def memory(
    running: Proxied, control: ProxyClient, http: Http, texts: Texts, tokens: int, count: int
) -> tuple[float, list[Chat]]:
    """MiB that the process grew by per session: what it keeps, and what its allocator does not give back.
    Sessions of the same size come first, until one makes the process grow: they fill the room that its start
    and its first session left in the heap."""
    first, *filling = await chats(control, http, texts, FILLING)
    await grown(first, tokens)
    for chat in filling:
        before = running.served.rss()
        await grown(chat, tokens)
        if running.served.rss() - before > MIB:
            break
    before = running.served.rss()
    made = [await grown(chat, tokens) for chat in await chats(control, http, texts, count)]
    return round((running.served.rss() - before) / MIB / count, 2), made


async def reading(running: Proxied, control: ProxyClient, sessions: Sequence[Chat]) -> dict[str, object]:
    """Finalize and read each session; and what its turn log and its trajectory take on disk."""
    times, sizes = [], []
    for chat in sessions:
        session_id = chat.url.removesuffix("/v1").rsplit("/", 1)[1]
        started = time.perf_counter()
        await control.finalize(session_id, failure_class="completed")
        _, segments = await control.segments(session_id)
        times.append(time.perf_counter() - started)
        stored = sum(path.stat().st_size for path in store_files(running.store, session_id))
        sizes.append(stored / sum(len(segment) for segment in segments))
    return {
        "finalize_read_ms_64k": round(1e3 * statistics.median(times), 1),
        "bytes_per_token_64k": round(statistics.median(sizes), 2),
    }


def store_files(store: Path, session_id: str) -> list[Path]:
    """The turn log and the trajectory of a session."""
    return [path for path in store.rglob(f"*{session_id}*") if path.is_file()]


async def sizes(http: Http, url: str) -> dict[str, object]:
    """Memory and reading, each length on a proxy of its own."""
    mib, results = {}, {}
    with small_tokenizer_folder() as folder:
        texts = Texts(folder)
        for name, tokens, count in (("64k", 64_000, 8), ("111k", 111_000, 5)):
            with proxy(url, folder) as running:
                async with running.client() as control:
                    mib[name], made = await memory(running, control, http, texts, tokens, count)
                    if name == "64k":
                        results = await reading(running, control, made)
    return {"session_mib": mib, **results}
