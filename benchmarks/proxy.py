"""The proxy against the bare scripted engine: time a turn, throughput, memory, pauses.

A turn is about 500 tokens, 100 of them sampled. The bare client sends the whole ids to the engine itself,
through the same HTTP client.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from dressage_proxy.client import ProxyClient

from benchmarks._proxy_rig import (
    REPLY_TOKENS,
    Bare,
    Http,
    Proxied,
    Texts,
    chats,
    engine,
    proxy,
    tokenizer_folder,
)
from benchmarks._proxy_sizes import grown, sizes
from benchmarks._report import report

MARKS = (10, 50, 100, 200)
WINDOW = 4
SESSIONS = 3
TURNS = 10
PROMPTS = {"5.4k": 5_400, "27k": 27_000, "55k": 55_000, "111k": 111_000}
R3_TOKENS = 13_600
R3_SHAPE = "40,8,128"
SHARD_AGENTS = 64
SLOW_DELAY_S = 0.02
SLOW_TOKENS = 200
SLOW_REPLY = 50
SLOW_CALLS = 250
SLOW_ROUNDS = 5


async def per_turn(control: ProxyClient, http: Http, texts: Texts, url: str) -> dict[str, object]:
    """Total over bare around each mark: the median over the turns near it of several sessions."""
    total: dict[int, list[float]] = {mark: [] for mark in MARKS}
    bare: dict[int, list[float]] = {mark: [] for mark in MARKS}
    for chat in await chats(control, http, texts, SESSIONS):
        plain = Bare(http, url, texts)
        for number in range(1, MARKS[-1] + WINDOW + 1):
            through, straight = await chat.turn(), await plain.turn()
            for mark in MARKS:
                if abs(number - mark) <= WINDOW:
                    total[mark].append(through)
                    bare[mark].append(straight)
    middle = statistics.median
    return {
        "per_turn_ratio": {str(mark): round(middle(total[mark]) / middle(bare[mark]), 2) for mark in MARKS},
        "per_turn_ms": {str(mark): round(1e3 * middle(total[mark]), 2) for mark in MARKS},
        "bare_turn_ms": {str(mark): round(1e3 * middle(bare[mark]), 2) for mark in MARKS},
    }


class Turns(Protocol):
    """A conversation that can go on."""

    async def turn(self) -> float: ...


async def rate(sessions: Sequence[Turns], concurrency: int) -> float:
    """Turns a second, ``concurrency`` sessions at a time, TURNS turns each."""
    todo = iter(sessions)

    async def worker() -> None:
        for session in todo:
            for _ in range(TURNS):
                await session.turn()

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return len(sessions) * TURNS / (time.perf_counter() - started)


async def throughput(
    running: Proxied, control: ProxyClient, http: Http, texts: Texts, url: str
) -> dict[str, object]:
    ratios, rates, bare_rates = {}, {}, {}
    for concurrency, count in ((1, 20), (16, 64), (64, 128)):
        plain = await rate([Bare(http, url, texts) for _ in range(count)], concurrency)
        sessions = await chats(control, http, texts, count)
        cpu_s = running.served.cpu_s()
        through = await rate(sessions, concurrency)
        cpu_s = running.served.cpu_s() - cpu_s
        ratios[str(concurrency)] = round(through / plain, 3)
        rates[str(concurrency)], bare_rates[str(concurrency)] = round(through), round(plain)
    return {
        "throughput_ratio": ratios,
        "requests_per_core_s_c64": round(count * TURNS / cpu_s),
        "requests_per_s": rates,
        "bare_requests_per_s": bare_rates,
    }


async def seconds(runs: Sequence[Callable[[], Awaitable[object]]]) -> float:
    """The time that all take side by side."""
    started = time.perf_counter()
    await asyncio.gather(*(run() for run in runs))
    return time.perf_counter() - started


async def branches(control: ProxyClient, http: Http, texts: Texts) -> dict[str, object]:
    """Four sub-agents of one session at once, against one."""
    session = await control.open(instance_id="branches")

    def call(number: int) -> Callable[[], Awaitable[object]]:
        system = {"role": "system", "content": f"You are sub-agent {number}."}
        body = {"model": "m", "messages": [system, texts.message(0)], "max_tokens": 25}
        headers = {"x-openai-subagent": f"agent-{number}"}
        return lambda: http.post(f"{session.openai_url}/chat/completions", body, headers)

    one = await seconds([call(0)])
    four = await seconds([call(number) for number in range(1, 5)])
    return {"parallel_branches_ratio_4": round(four / one, 3)}


async def slow_upstream(control: ProxyClient, http: Http, texts: Texts, url: str) -> dict[str, object]:
    """250 calls at once, each a session's first and a second upstream, and the same without the proxy: the
    median of a few rounds. In the first one every connection is new."""
    bare, through = [], []
    for _ in range(SLOW_ROUNDS):
        plain = [Bare(http, url, texts) for _ in range(SLOW_CALLS)]
        bare.append(await seconds([partial(one.turn, max_tokens=SLOW_REPLY) for one in plain]))
        sessions = await chats(control, http, texts, SLOW_CALLS)
        through.append(await seconds([partial(chat.turn, max_tokens=SLOW_REPLY) for chat in sessions]))
    return {
        "slow_upstream_250_s": round(statistics.median(through), 2),
        "slow_upstream_rounds_s": [round(value, 2) for value in through],
        "slow_upstream_bare_s": round(statistics.median(bare), 2),
        "slow_upstream_bare_rounds_s": [round(value, 2) for value in bare],
        "slow_upstream_itself_s": SLOW_REPLY * SLOW_DELAY_S,
    }


async def pausing(control: ProxyClient, http: Http, texts: Texts) -> dict[str, object]:
    """Pause while 150 calls run; all go on after and end whole."""
    sessions = await chats(control, http, texts, 150)
    tasks = [asyncio.create_task(chat.turn(max_tokens=SLOW_TOKENS)) for chat in sessions]
    while (await control.rollout())["in_flight"] < len(sessions):  # noqa: ASYNC110 - over HTTP, no event tells
        await asyncio.sleep(0.02)
    started = time.perf_counter()
    paused = await control.pause(timeout_s=10)
    took = time.perf_counter() - started
    await control.resume(1)
    await asyncio.gather(*tasks)
    return {
        "pause_150_s": round(took, 3),
        "pause_150_quiesced": paused.quiesced,
        "pause_150_preempted": paused.preempted,
    }


async def measure(folder: Path) -> dict[str, object]:
    texts = Texts(folder)
    results: dict[str, object] = {}
    async with Http() as http:
        with engine(REPLY_TOKENS) as url:
            with proxy(url, folder) as running:
                async with running.client() as control:
                    await (await chats(control, http, texts, 1))[0].turn()
                    results |= await per_turn(control, http, texts, url)
                    results |= await throughput(running, control, http, texts, url)
            with proxy(url, folder) as running:
                async with running.client() as control:
                    results |= await long_prompts(control, http, texts, url)
            results |= await sizes(http, url)
        results |= await routed_experts(folder, texts, http)
        results |= await sharded(folder, texts)
        with engine(SLOW_TOKENS, SLOW_DELAY_S) as url, proxy(url, folder) as running:
            async with running.client() as control:
                results |= await branches(control, http, texts)
                results |= await slow_upstream(control, http, texts, url)
                results |= await pausing(control, http, texts)
    return results


async def long_prompts(control: ProxyClient, http: Http, texts: Texts, url: str) -> dict[str, object]:
    """A turn at each length of prompt, total and bare: the median over a few turns from there on."""
    total: dict[str, float] = {}
    bare: dict[str, float] = {}
    (chat,) = await chats(control, http, texts, 1)
    plain = Bare(http, url, texts)
    for name, tokens in PROMPTS.items():
        while chat.tokens < tokens:
            await chat.turn()
            await plain.turn()
        pairs = [(await chat.turn(), await plain.turn()) for _ in range(2 * WINDOW + 1)]
        total[name] = statistics.median(pair[0] for pair in pairs)
        bare[name] = statistics.median(pair[1] for pair in pairs)
    return {
        "prompt_turn_ms": {name: round(1e3 * value, 2) for name, value in total.items()},
        "prompt_turn_ratio": {name: round(total[name] / bare[name], 2) for name in total},
    }


async def turns_cpu(folder: Path, texts: Texts, http: Http, url: str, *options: str) -> float:
    """CPU milliseconds of the proxy for a turn at R3_TOKENS of prompt."""
    with proxy(url, folder, *options) as running:
        async with running.client() as control:
            made = [await grown(chat, R3_TOKENS) for chat in await chats(control, http, texts, SESSIONS)]
            before = running.served.cpu_s()
            for chat in made:
                for _ in range(TURNS):
                    await chat.turn()
            return 1e3 * (running.served.cpu_s() - before) / (len(made) * TURNS)


async def routed_experts(folder: Path, texts: Texts, http: Http) -> dict[str, object]:
    """What routed experts of 40 layers and 8 experts cost a turn, beside the same turn without them."""
    with engine(REPLY_TOKENS, 0.0, "--routed-experts", R3_SHAPE) as url:
        plain = await turns_cpu(folder, texts, http, url)
        experts = await turns_cpu(folder, texts, http, url, "--routed-experts", R3_SHAPE)
    return {
        "r3_cpu_ms_per_turn_13k": round(experts - plain, 2),
        "turn_cpu_ms_13k": {"without_experts": round(plain, 2), "with_experts": round(experts, 2)},
    }


async def sharded(folder: Path, texts: Texts) -> dict[str, object]:
    """Turns a second of one process and of two shards, also as a part of the bare engine's; the engine and
    the client are on the same machine. Each agent has connections of its own, as agents do."""
    rates: dict[int, float] = {}
    ratios: dict[int, float] = {}
    per_core: dict[int, float] = {}
    for shards in (1, 2):
        with engine(REPLY_TOKENS) as url, proxy(url, folder, "--shards", str(shards)) as running:
            async with running.client() as control, contextlib.AsyncExitStack() as stack:
                agents = [await stack.enter_async_context(Http()) for _ in range(SHARD_AGENTS)]
                plain = await rate([Bare(agent, url, texts) for agent in agents * 2], SHARD_AGENTS)
                made = [(await chats(control, agent, texts, 1))[0] for agent in agents * 2]
                await rate(made[:4], 4)
                before = running.served.cpu_s()
                rates[shards] = await rate(made, SHARD_AGENTS)
                ratios[shards] = rates[shards] / plain
                per_core[shards] = len(made) * TURNS / (running.served.cpu_s() - before)
    return {
        "shards_speedup_2": round(rates[2] / rates[1], 2),
        "shards_throughput_ratio": {str(shards): round(value, 3) for shards, value in ratios.items()},
        "shards_requests_per_s": {str(shards): round(value) for shards, value in rates.items()},
        "shards_requests_per_core_s": {str(shards): round(value) for shards, value in per_core.items()},
    }


def main() -> None:
    # A look of this client for its own garbage takes up to 0.2 s, and would count as somebody's turn.
    gc.disable()
    with tokenizer_folder() as folder:
        results = {**asyncio.run(measure(folder)), "tokenizer": folder.name}
    report("proxy", results)


if __name__ == "__main__":
    main()
