"""From parsed flags to what a proxy is made of. Errors name the flag."""

from __future__ import annotations

import argparse
import json
import os
import socket
from pathlib import Path

from dressage_store import FilesStore, StoreError, replace_file
from dressage_tito import ChatCodec, TitoError
from pydantic import ValidationError

from dressage_proxy.config import ProxyConfig
from dressage_proxy.engine.choose import Choice
from dressage_proxy.engine.experts import ExpertsShape
from dressage_proxy.errors import ConfigError

KEY_VARIABLE = "DRESSAGE_CONTROL_KEY"
KEY_FILE = "control.key"
_HALF = ".tmp"
"""Ends the name of a file that is being written, here and in the store."""
_SHARDS_FILE = "shards"
_BACKLOG = 2048
_MAX_PORT = 65535
_FLAGS = {
    "engines": "--engine",
    "retain": "--store-retain",
    "keepalive_s": "--keepalive",
    "idle_timeout_s": "--idle-timeout",
    "engine_timeout_s": "--engine-timeout",
    "drain_s": "--drain",
    "control_key": f"the control key (--control-key-file or ${KEY_VARIABLE})",
}
"""What the configuration's fields are called on the command line, where they differ."""


def config(args: argparse.Namespace, key: str) -> ProxyConfig:
    """The configuration. Raises ConfigError naming the flag at fault."""
    if args.shards < 1:
        raise ConfigError(f"--shards {args.shards}: must be at least 1")
    try:
        return ProxyConfig(
            tokenizer=args.tokenizer,
            engines=tuple(url.strip() for url in args.engine.split(",") if url.strip()),
            router=args.router,
            engine_choice=Choice(args.engine_choice),
            engine_cache_tokens=args.engine_cache_tokens,
            engine_timeout_s=args.engine_timeout,
            routed_experts=_experts(args),
            store=store_root(args),
            control_key=key,
            model_name=args.model_name,
            template_kwargs=_json(args.template_kwargs),
            context_window=args.context_window,
            max_output_tokens=args.max_output_tokens,
            retain=args.store_retain,
            fsync=args.fsync,
            keepalive_s=args.keepalive,
            max_sessions=-(-args.max_sessions // args.shards),
            max_body_bytes=args.max_body_bytes,
            max_in_flight=-(-args.max_in_flight // args.shards),
            idle_timeout_s=args.idle_timeout,
            max_version_switches=args.max_version_switches,
            drain_s=args.drain,
            shard=args.shard_index or 0,
            shards=args.shards,
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


def codec(args: argparse.Namespace) -> ChatCodec:
    """The tokenizer folder's codec. Raises ConfigError."""
    kwargs = _json(args.template_kwargs)
    try:
        return ChatCodec.from_folder(args.tokenizer, template_kwargs=kwargs, threads=True)
    except TitoError as error:
        raise ConfigError(f"--tokenizer {error}") from error
    except ValueError as error:
        raise ConfigError(f"--template-kwargs: {error}") from error


def store_root(args: argparse.Namespace) -> Path:
    """Where this process keeps its store: each shard has one of its own."""
    root: Path = args.store
    return root if args.shard_index is None else root / f"shard-{args.shard_index}"


def check_shards(root: Path, shards: int) -> None:
    """Refuse a store that was made with another number of shards: ids say by it where a session lives.

    Raises ConfigError. A new store is marked with the number.
    """
    path = root / _SHARDS_FILE
    try:
        root.mkdir(parents=True, exist_ok=True)
        marked = path.exists()
        made = int(path.read_text(encoding="ascii")) if marked else 1 if _used(root) else shards
        if made == shards and shards > 1 and not marked:
            replace_file(path, f"{shards}\n".encode(), fsync=True)
    except ValueError as error:
        raise ConfigError(
            f"--store: {path} holds no number: write into it how many folders shard-0, shard-1, … there are"
        ) from error
    except OSError as error:
        raise ConfigError(f"--store: {path}: {error}") from error
    if made != shards:
        raise ConfigError(f"--shards {shards}: this store was made with {made}; use that, or a new folder")


def _used(root: Path) -> bool:
    """Whether a single process has kept a store here: more than a key, or what a killed start had half
    written."""
    return any(path.name != KEY_FILE and path.suffix != _HALF for path in root.iterdir())


def store(args: argparse.Namespace, root: Path) -> FilesStore:
    """The store in ``root``. Raises ConfigError."""
    try:
        return FilesStore(root, retain=args.store_retain, fsync=args.fsync)
    except StoreError as error:
        raise ConfigError(f"--store {error}") from error


def given_key(args: argparse.Namespace) -> tuple[str | None, Path | None]:
    """The key, and the file that it came from: the one named, the variable, or the one of an earlier run on
    this store (who holds it must not be locked out by a restart). None where a new one is to be made."""
    path: Path | None = args.control_key_file
    if path is None and not os.environ.get(KEY_VARIABLE) and (args.store / KEY_FILE).is_file():
        path = args.store / KEY_FILE
    if path is not None:
        try:
            key = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"--control-key-file: {error}; give a text file that holds the key alone"
            ) from error
        if not key:
            raise ConfigError(f"--control-key-file: {path} is empty: put the key into it, or remove it")
        return key, path
    return os.environ.get(KEY_VARIABLE) or None, None


def write_key(path: Path, key: str) -> Path:
    """Keep a new key where only this user reads it; a process that is killed meanwhile leaves no half of one.
    Raises ConfigError."""
    new = path.with_name(path.name + _HALF)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(key)
        new.rename(path)
    except OSError as error:
        raise ConfigError(f"--store: cannot write the control key: {error}") from error
    return path


def listen(host: str, port: int, flag: str) -> socket.socket:
    """A listening socket. Raises ConfigError."""
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
