"""Runs a scripted engine alone and prints its address as one JSON line."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from collections.abc import Sequence
from pathlib import Path

import uvloop

from dressage_proxy.engine.script import Policy, letters, replies
from dressage_proxy.engine.scripted import ScriptedEngine, serve_scripted

_MAX_PORT = 65535


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dressage_proxy.engine.scripted", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--tokens", type=int, default=8, help="tokens of a reply, its stop token not counted")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds a token")
    parser.add_argument("--weight-version", default="0")
    parser.add_argument(
        "--prefill", type=float, default=0.0, help="seconds a prompt token that is not cached"
    )
    parser.add_argument("--prefix-cache", type=int, help="tokens that its prefix cache holds")
    parser.add_argument(
        "--routed-experts", type=_experts, metavar="LAYERS,TOPK,EXPERTS", help="answer with routed experts"
    )
    parser.add_argument(
        "--reply-text-file", type=Path, help="a text, or a JSON list of texts, as the replies"
    )
    parser.add_argument("--tokenizer", type=Path, help="the tokenizer folder that encodes the replies")
    return parser


def _policy(options: argparse.Namespace, parser: argparse.ArgumentParser) -> Policy:
    if options.reply_text_file is None:
        return letters(options.tokens)
    if options.tokenizer is None:
        parser.error("--reply-text-file needs --tokenizer, the folder that encodes it")
    # Only here, so that the engine alone stays light.
    from dressage_tito import ChatCodec, TitoError

    try:
        text = options.reply_text_file.read_text(encoding="utf-8")
        texts = json.loads(text) if options.reply_text_file.suffix == ".json" else [text]
        codec = ChatCodec.from_folder(options.tokenizer)
        return replies([codec.encode_sample(item) for item in texts])
    except (OSError, ValueError, TypeError, TitoError) as error:
        parser.error(f"--reply-text-file, --tokenizer: {error}")


def _experts(text: str) -> tuple[int, int, int]:
    try:
        layers, topk, experts = (int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not LAYERS,TOPK,EXPERTS") from error
    return layers, topk, experts


async def _serve(engine: ScriptedEngine, port: int) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with serve_scripted(engine, port=port) as url:
        print(json.dumps({"event": "ready", "url": url}), flush=True)
        await stopped.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve one engine until SIGINT or SIGTERM."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not 0 <= options.port <= _MAX_PORT:
        parser.error(f"--port {options.port}: must be 0 (a free one) to {_MAX_PORT}")
    engine = ScriptedEngine(
        _policy(options, parser),
        delay_s=options.delay,
        weight_version=options.weight_version,
        prefix_cache=options.prefix_cache,
        prefill_s=options.prefill,
        experts=options.routed_experts,
        keep=False,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_serve(engine, options.port))
        except OSError as error:
            parser.error(f"--port {options.port}: {error}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
