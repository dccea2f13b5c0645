"""What the proxy's benchmark runs on: engines and proxies as processes, and one HTTP client for both."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
import orjson
import psutil
from dressage_proxy.client import ProxyClient
from dressage_tito import ChatCodec
from dressage_tito.toy import write_toy_tokenizer

CONTEXT = 200_000
TURN_TOKENS = 500
REPLY_TOKENS = 100
FRAME_TOKENS = 12
WORDS = ("the", "user", "asks", "the", "assistant", "and", "the", "assistant", "answers", "the", "user.")
_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Served:
    """A process and the JSON line that it printed once it was ready."""

    process: subprocess.Popen[str]
    ready: Mapping[str, Any]

    def rss(self) -> int:
        """Resident bytes."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def cpu_s(self) -> float:
        """User and system seconds so far, of the process and of those that it started."""
        process = psutil.Process(self.process.pid)
        family = [process, *process.children(recursive=True)]
        return sum(times.user + times.system for times in (member.cpu_times() for member in family))


@contextmanager
def started(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[Served]:
    """A process from its ready line to its end."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{command[0]} ended with {process.wait()} before it was ready")
        yield Served(process, json.loads(line))
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


@contextmanager
def engine(tokens: int, delay_s: float = 0.0, *options: str) -> Iterator[str]:
    """The scripted engine; yields its URL."""
    command = [sys.executable, "-m", "dressage_proxy.engine.scripted"]
    with started([*command, "--tokens", str(tokens), "--delay", str(delay_s), *options]) as served:
        yield served.ready["url"]


@dataclass(frozen=True, slots=True)
class Proxied:
    """A running proxy."""

    served: Served
    key: str
    store: Path

    def client(self) -> ProxyClient:
        """A client of its control plane."""
        return ProxyClient(self.served.ready["control_url"], self.key, timeout_s=60)


@contextmanager
def proxy(engine_url: str, tokenizer: Path, *options: str) -> Iterator[Proxied]:
    """``dressage-proxy serve`` over a store that is thrown away."""
    key = secrets.token_urlsafe(24)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "dressage_proxy.cli", "serve"]
        command += ["--tokenizer", str(tokenizer), "--engine", engine_url, "--store", f"{folder}/store"]
        command += ["--port", "0", "--control-port", "0", "--log-level", "warning"]
        command += ["--context-window", str(CONTEXT), *options]
        with started(command, {"DRESSAGE_CONTROL_KEY": key}) as served:
            yield Proxied(served, key, Path(folder) / "store")


@contextmanager
def small_tokenizer_folder() -> Iterator[Path]:
    """The toy: reading a large tokenizer.json leaves a heap of hundreds of MiB with room for many sessions,
    in which their growth would not be seen."""
    with tempfile.TemporaryDirectory() as folder:
        yield write_toy_tokenizer(folder, merges=1000)


@contextmanager
def tokenizer_folder() -> Iterator[Path]:
    """Qwen3's tokenizer where it can be had, else the toy."""
    fetch = Path(__file__).resolve().parent.parent / "scripts" / "fetch_test_models.py"
    done = subprocess.run([sys.executable, str(fetch), "qwen3"], capture_output=True, text=True, check=False)
    if done.returncode == 0 and done.stdout.strip():
        yield Path(done.stdout.splitlines()[-1])
        return
    with small_tokenizer_folder() as small:
        yield small


class Texts:
    """User messages so long that a turn with its reply of REPLY_TOKENS is about TURN_TOKENS."""

    def __init__(self, folder: Path) -> None:
        codec = ChatCodec.from_folder(folder)
        self.stop = codec.stop_token_ids[0]
        words = [word for _ in range(TURN_TOKENS) for word in WORDS]
        size = TURN_TOKENS - REPLY_TOKENS - FRAME_TOKENS
        low, high = 1, len(words)
        while low < high:
            middle = (low + high) // 2
            if len(codec.encode_sample(" ".join(words[:middle]))) < size:
                low = middle + 1
            else:
                high = middle
        self.text = " ".join(words[:low])
        self.ids = [int(token) for token in codec.encode_sample(self.text)]

    def message(self, turn: int) -> dict[str, str]:
        """The user message of a turn; each turn's differs."""
        return {"role": "user", "content": f"{turn} {self.text}"}


class Http:
    """The client of every measurement: keep-alive, orjson, no limit of connections."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=120)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def post(self, url: str, body: object, headers: Mapping[str, str] | None = None) -> Any:
        """JSON out, JSON in. Raises SystemExit for any other status than 200."""
        async with self._session.post(
            url, data=orjson.dumps(body), headers={**_JSON, **(headers or {})}
        ) as response:
            reply = await response.read()
            if response.status != 200:
                raise SystemExit(f"{url}: {response.status} {reply[:300]!r}")
            return orjson.loads(reply)


@dataclass(slots=True)
class Chat:
    """A conversation through the proxy. ``url`` is the session's OpenAI base URL."""

    http: Http
    url: str
    texts: Texts
    messages: list[dict[str, Any]] = field(default_factory=list)
    turns: int = 0
    tokens: int = 0
    """Of the session's newest branch, reply included."""

    async def turn(self, max_tokens: int | None = None) -> float:
        """One turn; the seconds that it took, JSON included."""
        self.messages.append(self.texts.message(self.turns))
        started_at = time.perf_counter()
        body: dict[str, Any] = {"model": "m", "messages": self.messages}
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        reply = await self.http.post(f"{self.url}/chat/completions", body)
        seconds = time.perf_counter() - started_at
        self.messages.append(reply["choices"][0]["message"])
        self.turns += 1
        self.tokens = reply["usage"]["total_tokens"]
        return seconds


@dataclass(slots=True)
class Bare:
    """The same conversation as ids, sent whole to the engine on each turn."""

    http: Http
    url: str
    texts: Texts
    ids: list[int] = field(default_factory=list)
    turns: int = 0

    async def turn(self, max_tokens: int = 8192) -> float:
        """One turn; the seconds that it took, JSON included."""
        self.ids += self.texts.ids
        params = {"max_new_tokens": max_tokens, "temperature": 1.0, "stop_token_ids": [self.texts.stop]}
        body = {
            "rid": f"{id(self):x}-{self.turns:06d}",
            "input_ids": self.ids,
            "sampling_params": params,
            "return_logprob": True,
            "logprob_start_len": -1,
        }
        started_at = time.perf_counter()
        reply = await self.http.post(f"{self.url}/generate", body)
        seconds = time.perf_counter() - started_at
        self.ids += reply["output_ids"]
        self.turns += 1
        return seconds


async def chats(control: ProxyClient, http: Http, texts: Texts, count: int) -> list[Chat]:
    """New sessions."""
    opened = [await control.open(instance_id=f"bench-{number}") for number in range(count)]
    return [Chat(http, session.openai_url, texts) for session in opened]
