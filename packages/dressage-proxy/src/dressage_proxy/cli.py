"""``dressage-proxy serve``: the only place that reads flags and the environment."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn
from dressage_store import FilesStore, StoreError
from dressage_tito import ChatCodec, TitoError
from pydantic import ValidationError

from dressage_proxy.app import CombinedApp, Proxy, running
from dressage_proxy.config import ProxyConfig
from dressage_proxy.engine.choose import Choice
from dressage_proxy.engine.experts import ExpertsShape
from dressage_proxy.errors import ConfigError

KEY_VARIABLE = "DRESSAGE_CONTROL_KEY"
_KEY_FILE = "control.key"
_BACKLOG = 2048
_GC_YOUNG = 20_000
_MAX_PORT = 65535
_FLAGS = {
    "engines": "--engine",
    "retain": "--store-retain",
    "keepalive_s": "--keepalive",
    "control_key": f"the control key (--control-key-file or ${KEY_VARIABLE})",
}
"""What the configuration's fields are called on the command line, where they differ."""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 after a graceful stop, 2 for a configuration that cannot work."""
    args = _parser().parse_args(argv)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one text at a time, on threads of our own
    logging.basicConfig(level=args.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        return _serve(args)
    except (ConfigError, StoreError) as error:
        print(f"dressage-proxy: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dressage-proxy", description="A recording model proxy.")
    serve = parser.add_subparsers(dest="command", required=True).add_parser(
        "serve",
        help="serve the data plane and the control plane",
        epilog=f"The control key comes from --control-key-file or ${KEY_VARIABLE}; with neither, one is made "
        f"and kept in STORE/{_KEY_FILE} (mode 0600).",
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
        help="an engine's max_total_num_tokens, for prefix-aware",
    )
    serve.add_argument(
        "--routed-experts",
        metavar="auto|LAYERS,TOPK,EXPERTS",
        help="record routed experts (R3); auto reads the tokenizer folder's config.json",
    )
    serve.add_argument("--store", required=True, type=Path, help="folder for turn logs and trajectories")
    serve.add_argument("--host", default="127.0.0.1")
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
    serve.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    return parser


def _serve(args: argparse.Namespace) -> int:
    codec = _codec(args)
    with contextlib.ExitStack() as stack:
        data = stack.enter_context(_listen(args.host, args.port, "--port"))
        control = None
        if args.control_port is not None:
            control = stack.enter_context(_listen(args.host, args.control_port, "--control-port"))
        given, key_file = _given_key(args)
        key = given or secrets.token_urlsafe(32)
        config = _config(args, key)
        store = stack.enter_context(_store(args))
        if given is None:
            key_file = _write_key(args.store / _KEY_FILE, key)
        _run(Proxy.build(config, store, codec), data, control, args.host, key_file)
    return 0


def _config(args: argparse.Namespace, key: str) -> ProxyConfig:
    try:
        return ProxyConfig(
            tokenizer=args.tokenizer,
            engines=tuple(url.strip() for url in args.engine.split(",") if url.strip()),
            router=args.router,
            engine_choice=Choice(args.engine_choice),
            engine_cache_tokens=args.engine_cache_tokens,
            routed_experts=_experts(args),
            store=args.store,
            control_key=key,
            model_name=args.model_name,
            template_kwargs=_json(args.template_kwargs),
            context_window=args.context_window,
            max_output_tokens=args.max_output_tokens,
            retain=args.store_retain,
            fsync=args.fsync,
            keepalive_s=args.keepalive,
            max_sessions=args.max_sessions,
        )
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "engines"
        flag = _FLAGS.get(name, "--" + name.replace("_", "-"))
        raise ConfigError(f"{flag}: {first['msg'].removeprefix('Value error, ')}") from error


def _experts(args: argparse.Namespace) -> ExpertsShape | None:
    text: str | None = args.routed_experts
    if text is None:
        return None
    if text == "auto":
        return ExpertsShape.from_model(args.tokenizer)
    try:
        layers, topk, experts = (int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"--routed-experts {text!r}: give auto, or LAYERS,TOPK,EXPERTS") from error
    return ExpertsShape(layers, topk, experts)


def _json(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--template-kwargs is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError("--template-kwargs must be a JSON object")
    return value


def _codec(args: argparse.Namespace) -> ChatCodec:
    kwargs = _json(args.template_kwargs)
    try:
        return ChatCodec.from_folder(args.tokenizer, template_kwargs=kwargs, threads=True)
    except TitoError as error:
        raise ConfigError(f"--tokenizer {error}") from error
    except ValueError as error:
        raise ConfigError(f"--template-kwargs: {error}") from error


def _store(args: argparse.Namespace) -> FilesStore:
    try:
        return FilesStore(args.store, retain=args.store_retain, fsync=args.fsync)
    except StoreError as error:
        raise ConfigError(f"--store {error}") from error


def _given_key(args: argparse.Namespace) -> tuple[str | None, Path | None]:
    """The key, and the file that it came from: the one named, the variable, or the one of an earlier run on
    this store (who holds it must not be locked out by a restart). None where a new one is to be made."""
    path: Path | None = args.control_key_file
    if path is None and not os.environ.get(KEY_VARIABLE) and (args.store / _KEY_FILE).is_file():
        path = args.store / _KEY_FILE
    if path is not None:
        try:
            return path.read_text(encoding="utf-8").strip(), path
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"--control-key-file: {error}; give a text file that holds the key alone"
            ) from error
    return os.environ.get(KEY_VARIABLE) or None, None


def _write_key(path: Path, key: str) -> Path:
    try:
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(key)
    except OSError as error:
        raise ConfigError(f"--store: cannot write the control key: {error}") from error
    return path


def _listen(host: str, port: int, flag: str) -> socket.socket:
    # Checked here: the resolver takes a larger number modulo 65536.
    if not 0 <= port <= _MAX_PORT:
        raise ConfigError(f"{flag} {port}: must be 0 (a free one) to {_MAX_PORT}")
    sock = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
        sock.set_inheritable(True)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise ConfigError(
            f"{flag} {port}: cannot listen on {host}:{port} ({error}); choose another, or 0 for a free one"
        ) from error
    return sock


def _run(
    proxy: Proxy, data: socket.socket, control: socket.socket | None, host: str, key_file: Path | None
) -> None:
    import uvloop

    data_url = f"http://{host}:{data.getsockname()[1]}"
    control_url = f"http://{host}:{control.getsockname()[1]}" if control else data_url
    ready = {
        "event": "ready",
        "data_url": data_url,
        "control_url": control_url,
        "control_key_file": str(key_file) if key_file else None,
    }

    async def serve() -> None:
        async with running(proxy):
            if control is None:
                servers = [(_server(proxy.app(data_url)), data)]
            else:
                servers = [
                    (_server(CombinedApp(proxy.data_app(), None)), data),
                    (_server(proxy.control_app(data_url)), control),
                ]
            stop = asyncio.Event()
            loop = asyncio.get_running_loop()
            for name in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(name, stop.set)
            tasks = [asyncio.create_task(server.serve([sock])) for server, sock in servers]
            while not all(server.started for server, _ in servers):  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.005)
            print(json.dumps(ready), flush=True)
            await stop.wait()
            for server, _ in servers:
                server.should_exit = True
            await asyncio.gather(*tasks)

    _settle_garbage_collector()
    uvloop.run(serve())


def _settle_garbage_collector() -> None:
    """A tokenizer is hundreds of thousands of objects that live as long as the process: they are never looked
    at again. Turns add objects that stay, so that a look at the youngest ones is rarely worth its time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_YOUNG, 20, 20)


class _Server(uvicorn.Server):
    """Leaves signals to its caller: two servers share this process."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        """Nothing to capture."""
        yield


def _server(app: object) -> _Server:
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        http="httptools",
        lifespan="off",
        access_log=False,
        proxy_headers=False,
        log_level="warning",
        timeout_graceful_shutdown=10,
        timeout_keep_alive=120,
    )
    return _Server(config)


if __name__ == "__main__":
    sys.exit(main())
