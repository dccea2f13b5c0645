"""``dressage-proxy serve``: the only place that reads flags and the environment."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import socket
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from dressage_store import StoreError

from dressage_proxy import gate, options
from dressage_proxy.app import CombinedApp, Proxy, running
from dressage_proxy.control import EVERY_ADDRESS
from dressage_proxy.engine.choose import Choice
from dressage_proxy.errors import ConfigError, RouterError
from dressage_proxy.hooks import load_hooks
from dressage_proxy.logs import configure_logs
from dressage_proxy.options import KEY_FILE, KEY_VARIABLE
from dressage_proxy.serving import (
    allow_open_files,
    http_server,
    serving,
    settle_garbage_collector,
    stop_at_signals,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 after a graceful stop, 2 for a configuration that cannot work."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = _parser().parse_args(arguments)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one text at a time, on threads of our own
    _log(args, os.environ.get(KEY_VARIABLE, ""))
    try:
        if args.shard_index is not None:
            return _serve_shard(args)
        if args.shards > 1:
            return _serve_shards(args, arguments)
        return _serve(args)
    except (ConfigError, StoreError, RouterError) as error:
        flag = "--router " if isinstance(error, RouterError) else ""
        print(f"dressage-proxy: {flag}{' '.join(str(error).split())}", file=sys.stderr)
        return 2


def _log(args: argparse.Namespace, key: str) -> None:
    """Log as the flags say, with the control key in no line."""
    as_json, shard = args.log_format == "json", args.shard_index
    configure_logs(args.log_level, as_json=as_json, secrets=[key], shard=shard)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dressage-proxy", description="A recording model proxy.")
    serve = parser.add_subparsers(dest="command", required=True).add_parser(
        "serve",
        help="serve the data plane and the control plane",
        epilog=f"The control key comes from --control-key-file or ${KEY_VARIABLE}; with neither, one is made "
        f"and kept in STORE/{KEY_FILE} (mode 0600).",
    )
    serve.add_argument("--tokenizer", required=True, type=Path, help="folder of a Hugging Face tokenizer")
    serve.add_argument("--engine", default="", help="base URL of an SGLang engine; several by commas")
    serve.add_argument("--router", help="base URL of a sglang-router: its workers are called directly")
    serve.add_argument(
        "--engine-choice",
        default=Choice.PREFIX_AWARE.value,
        choices=[choice.value for choice in Choice],
        help="which engine samples a session's next step",
    )
    serve.add_argument(
        "--engine-cache-tokens",
        type=int,
        default=0,
        help="an engine's max_total_num_tokens, for prefix-aware; 0: not known",
    )
    serve.add_argument(
        "--engine-timeout", type=float, default=3600.0, help="seconds for one call; then another try is made"
    )
    serve.add_argument(
        "--routed-experts",
        metavar="auto|LAYERS,TOPK,EXPERTS",
        help="record routed experts (R3); auto reads the tokenizer folder's config.json",
    )
    serve.add_argument("--store", required=True, type=Path, help="folder for turn logs and trajectories")
    serve.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; 0.0.0.0 or :: is all, and agents get the one where a session was opened",
    )
    serve.add_argument("--port", type=int, default=8080, help="data plane; 0 takes a free one")
    serve.add_argument("--control-port", type=int, help="control plane; default: the data plane's port")
    serve.add_argument("--control-key-file", type=Path)
    serve.add_argument("--context-window", type=int, default=32768, help="tokens")
    serve.add_argument("--max-output-tokens", type=int, default=8192)
    serve.add_argument("--model-name", default="dressage", help="what /v1/models lists")
    serve.add_argument("--template-kwargs", default="{}", help='JSON, such as {"enable_thinking": false}')
    serve.add_argument("--store-retain", action="store_true", help="keep what was acked, for an audit")
    serve.add_argument("--fsync", action="store_true", help="survive a power cut too, not only a crash")
    serve.add_argument("--keepalive", type=float, default=10.0, help="seconds between comments on a stream")
    serve.add_argument("--max-sessions", type=int, default=100_000, help="open and not yet acked")
    serve.add_argument("--max-in-flight", type=int, default=4096, help="replies in the making at once")
    serve.add_argument("--max-body-bytes", type=int, default=64 << 20, help="of one request")
    serve.add_argument("--idle-timeout", type=float, help="seconds without a call after which a session ends")
    serve.add_argument("--max-version-switches", type=int, help="of weights within a session; default: any")
    serve.add_argument(
        "--drain", type=float, default=10.0, help="seconds for replies in the making at the end"
    )
    serve.add_argument("--shards", type=int, default=1, help="processes that share the sessions")
    serve.add_argument("--tool-hook", action="append", default=[], help="an installed tool hook; repeatable")
    serve.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    serve.add_argument("--log-format", default="text", choices=["text", "json"])
    # How a parent starts its shards; not for people.
    serve.add_argument("--shard-index", type=int, help=argparse.SUPPRESS)
    serve.add_argument("--shard-channel", type=int, help=argparse.SUPPRESS)
    serve.add_argument("--shard-folder", type=Path, help=argparse.SUPPRESS)
    serve.add_argument("--shard-base-url", help=argparse.SUPPRESS)
    return parser


def _serve(args: argparse.Namespace) -> int:
    codec = options.codec(args)
    with contextlib.ExitStack() as stack:
        data, control = _listeners(args, stack)
        given, key_file = options.given_key(args)
        key = given or secrets.token_urlsafe(32)
        _log(args, key)
        config = options.config(args, key)
        allow_open_files(config.max_in_flight)
        options.check_shards(args.store, 1)
        store = stack.enter_context(options.store(args, config.store))
        if given is None:
            key_file = options.write_key(args.store / KEY_FILE, key)
        proxy = Proxy.build(config, store, codec, load_hooks(args.tool_hook))
        _run(_one(proxy, data, control, _ready(args, data, control, key_file)))
    return 0


def _serve_shards(args: argparse.Namespace, arguments: Sequence[str]) -> int:
    from dressage_proxy.shards.sockets import socket_folder
    from dressage_proxy.shards.supervisor import Supervisor, own_command

    with contextlib.ExitStack() as stack:
        data, control = _listeners(args, stack)
        given, key_file = options.given_key(args)
        key = given or secrets.token_urlsafe(32)
        _log(args, key)
        config = options.config(args, key)  # said here, once, and not by every shard
        allow_open_files(config.max_in_flight)
        load_hooks(args.tool_hook)
        options.check_shards(args.store, args.shards)
        if given is None:
            key_file = options.write_key(args.store / KEY_FILE, key)
        folder = stack.enter_context(socket_folder())
        ready = _ready(args, data, control, key_file)
        command = own_command([*arguments, "--shard-base-url", str(ready["data_url"])])
        kept = gate.GateFile(args.store / gate.GATE_FILE, fsync=config.fsync)
        supervisor = Supervisor(config, folder, command, KEY_VARIABLE, kept)

        async def serve() -> None:
            await supervisor.serve(data, control, ready)

        _run(serve())
    return 0


def _serve_shard(args: argparse.Namespace) -> int:
    from dressage_proxy.shards.worker import ShardPlace, serve_shard

    config = options.config(args, os.environ[KEY_VARIABLE])
    allow_open_files(config.max_in_flight)
    codec = options.codec(args)
    apart = args.control_port is not None
    place = ShardPlace(args.shard_index, args.shards, args.shard_folder, apart, args.shard_channel)
    with options.store(args, config.store) as store:
        proxy = Proxy.build(config, store, codec, load_hooks(args.tool_hook))
        _run(serve_shard(proxy, place, args.shard_base_url))
    return 0


def _listeners(
    args: argparse.Namespace, stack: contextlib.ExitStack
) -> tuple[socket.socket, socket.socket | None]:
    data = stack.enter_context(options.listen(args.host, args.port, "--port"))
    if args.control_port is None:
        return data, None
    return data, stack.enter_context(options.listen(args.host, args.control_port, "--control-port"))


def _ready(
    args: argparse.Namespace, data: socket.socket, control: socket.socket | None, key_file: Path | None
) -> dict[str, object]:
    bound = data.getsockname()[0]
    name = bound if bound in EVERY_ADDRESS else args.host  # "0" and "::0" are other names of these
    host = f"[{name}]" if ":" in name else name
    data_url = f"http://{host}:{data.getsockname()[1]}"
    return {
        "event": "ready",
        "data_url": data_url,
        "control_url": f"http://{host}:{control.getsockname()[1]}" if control else data_url,
        "control_key_file": str(key_file) if key_file else None,
    }


async def _one(
    proxy: Proxy, data: socket.socket, control: socket.socket | None, ready: dict[str, object]
) -> None:
    """Serve one process until SIGTERM or SIGINT; a second one ends the drain."""
    data_url = str(ready["data_url"])
    async with running(proxy):
        if control is None:
            servers = [(http_server(proxy.app(data_url)), data)]
        else:
            servers = [
                (http_server(CombinedApp(proxy.data_app(), None)), data),
                (http_server(proxy.control_app(data_url)), control),
            ]
        stop = stop_at_signals()
        async with serving(servers):
            print(json.dumps(ready), flush=True)
            await stop.asked.wait()
            await proxy.drain(stop.at_once)


def _run(serve: Coroutine[Any, Any, None]) -> None:
    import uvloop

    settle_garbage_collector()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve)


if __name__ == "__main__":
    sys.exit(main())
