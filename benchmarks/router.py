"""Choosing engines live: workers named by a real sglang-router, called directly by the proxy.

The engines are scripted ones that charge for what is not in their prefix cache. ``sglang-router`` is put
into a virtual environment of its own where it is not on the PATH; where it cannot be, that is the result.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
from dressage_proxy.client import ProxyClient
from dressage_proxy.engine.choose import Choice

from benchmarks._proxy_rig import REPLY_TOKENS, Chat, Http, Texts, engine, proxy, small_tokenizer_folder
from benchmarks._report import report

ENGINES = 4
SESSIONS = 32
AT_ONCE = 16
PREFILL_S = 1 / 20_000
TOKEN_S = 0.002
CACHE_TOKENS = "60000"
_START_S = 30


def router_program() -> str:
    """``sglang-router`` on the PATH, or from an environment that is made for it once."""
    found = shutil.which("sglang-router")
    if found:
        return found
    home = Path(tempfile.gettempdir()) / ".cache" / "sglang-router"
    program = home / "bin" / "sglang-router"
    if not program.exists():
        uv = shutil.which("uv")
        make = [uv, "venv", "--clear", str(home)] if uv else [sys.executable, "-m", "venv", str(home)]
        python = str(home / "bin" / "python")
        install = [uv, "pip", "install", "--python", python] if uv else [python, "-m", "pip", "install"]
        for command in (make, [*install, "sglang-router>=0.3"]):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return str(program)


@contextlib.contextmanager
def router(program: str, workers: list[str]) -> Iterator[str]:
    """A router that knows these workers; yields its URL."""
    with contextlib.ExitStack() as stack:
        port = _free_port()
        command = [program, "launch", "--host", "127.0.0.1", "--port", str(port), "--worker-urls", *workers]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + _START_S
        while _healthy(url) < len(workers):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("sglang-router did not start with all its workers")
            time.sleep(0.2)
        yield url


def _healthy(url: str) -> int:
    try:
        workers = httpx.get(f"{url}/workers", timeout=2, trust_env=False).json()["workers"]
    except (httpx.HTTPError, ValueError):
        return 0
    return sum(worker["is_healthy"] for worker in workers)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


async def load(control_url: str, key: str, texts: Texts) -> dict[str, float]:
    """Heavy-tailed sessions through a running proxy."""
    rng = random.Random(1)
    turns = [max(1, min(40, round(6 * rng.lognormvariate(0, 1)))) for _ in range(SESSIONS)]
    todo = iter(enumerate(turns))
    times: list[float] = []

    async with ProxyClient(control_url, key) as control, Http() as http:

        async def worker() -> None:
            for number, count in todo:
                opened = await control.open(instance_id=f"live-{number}")
                chat = Chat(http, opened.openai_url, texts)
                for _ in range(count):
                    times.append(await chat.turn())

        started = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
        took = time.perf_counter() - started
    times.sort()
    return {
        "tokens_per_s": round(len(times) * REPLY_TOKENS / took, 1),
        "turn_p50_s": round(times[len(times) // 2], 3),
        "turn_p95_s": round(times[int(len(times) * 0.95)], 3),
    }


def measured(program: str, choice: Choice, folder: Path, texts: Texts) -> dict[str, float]:
    """One rule over fresh engines behind a fresh router."""
    with contextlib.ExitStack() as stack:
        options = ("--prefill", str(PREFILL_S), "--prefix-cache", CACHE_TOKENS)
        urls = [stack.enter_context(engine(REPLY_TOKENS, TOKEN_S, *options)) for _ in range(ENGINES)]
        router_url = stack.enter_context(router(program, urls))
        flags = ("--router", router_url, "--engine-choice", choice.value)
        running = stack.enter_context(proxy("", folder, *flags, "--engine-cache-tokens", CACHE_TOKENS))
        return asyncio.run(load(str(running.served.ready["control_url"]), running.key, texts))


def main() -> None:
    try:
        program = router_program()
    except (OSError, subprocess.CalledProcessError) as error:
        report("router", {"engines": ENGINES, "rules": None, "rules_reason": f"no sglang-router: {error}"})
        return
    with small_tokenizer_folder() as folder:
        texts = Texts(folder)
        rules = {choice.value: measured(program, choice, folder, texts) for choice in Choice}
    sticky = rules[Choice.STICKY.value]["tokens_per_s"]
    gains = {name: round(rule["tokens_per_s"] / sticky - 1, 3) for name, rule in rules.items()}
    report("router", {"engines": ENGINES, "gain_over_sticky": gains, "rules": rules})


if __name__ == "__main__":
    main()
