"""Replays recorded agent traffic through the real proxy, and prints a table with a row a run.

Without a folder it replays conversations of its own in the shapes of the agents it knows. Exits 1 where a
branch or a loss is not explained by the requests alone, or an echo was tokenised again.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
from dressage_store import FilesStore
from dressage_tito import ChatCodec, TitoError
from dressage_tito.toy import write_toy_tokenizer

from dressage_proxy.app import Proxy, running
from dressage_proxy.client import ProxyClient
from dressage_proxy.config import ProxyConfig
from dressage_proxy.engine.scripted import ScriptedEngine, serve_scripted
from dressage_proxy.engine.scripted_http import serving
from dressage_proxy.replay.check import Finding, check
from dressage_proxy.replay.drive import Rig, replay_run
from dressage_proxy.replay.synthetic import synthetic_rows
from dressage_proxy.replay.table import table
from dressage_proxy.replay.traffic import Run, TrafficError, read_traffic, runs_from_rows

_WINDOW = 1 << 20
_TIMEOUT_S = 120.0


@asynccontextmanager
async def replay_rig(folder: Path, tokenizer: Path | None) -> AsyncIterator[Rig]:
    """A proxy over a scripted engine, on real sockets; its store and toy tokenizer lie in ``folder``."""
    tokenizer = tokenizer or write_toy_tokenizer(folder / "tokenizer")
    codec = ChatCodec.from_folder(tokenizer)
    if not codec.supports_tools:
        raise TrafficError(f"{tokenizer}: its chat template takes no tools, and agents offer some")
    engine = ScriptedEngine()
    key = secrets.token_hex(16)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serve_scripted(engine))
        config = ProxyConfig(
            tokenizer=tokenizer,
            engines=(url,),
            store=folder / "store",
            control_key=key,
            context_window=_WINDOW,
            max_output_tokens=_WINDOW,
            retain=True,
        )
        store = stack.enter_context(FilesStore(config.store, retain=True))
        proxy = await stack.enter_async_context(running(Proxy.build(config, store, codec)))
        address = await stack.enter_async_context(serving(proxy.app("http://proxy"), 0))
        control = await stack.enter_async_context(ProxyClient(address, key, timeout_s=_TIMEOUT_S))
        client = httpx.AsyncClient(base_url=address, timeout=_TIMEOUT_S, trust_env=False)
        http = await stack.enter_async_context(client)
        yield Rig(codec, engine, store, proxy, control, http)


async def replay(runs: Iterable[Run], folder: Path, tokenizer: Path | None = None) -> list[Finding]:
    """Replay runs one after the other, each in a session of its own."""
    async with replay_rig(folder, tokenizer) as rig:
        return [check(await replay_run(rig, run)) for run in runs]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="dressage_proxy.replay", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="a folder of *.jsonl or *.jsonl.gz")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer folder whose template takes tools")
    parser.add_argument("--run", action="append", help="replay this run alone; may be given again")
    options = parser.parse_args(arguments)
    try:
        rows = synthetic_rows() if options.folder is None else read_traffic(options.folder)
        runs = [run for run in runs_from_rows(rows) if not options.run or run.name in options.run]
        with tempfile.TemporaryDirectory(prefix="dressage-replay-") as folder:
            findings = asyncio.run(replay(runs, Path(folder), options.tokenizer))
    except (TrafficError, TitoError) as error:
        print(f"{error}", file=sys.stderr)
        return 2
    print(table(findings))
    return 1 if not findings or any(finding.problems for finding in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
