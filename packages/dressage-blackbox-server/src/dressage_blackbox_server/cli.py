"""The ``dressage-blackbox-server`` command: the only place that reads the environment."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from dressage_blackbox_server.agents import AgentStatus, agent_status, known_agents
from dressage_blackbox_server.errors import BlackboxError, RequestError
from dressage_blackbox_server.journal import FileJournal
from dressage_blackbox_server.local import LocalExecutor

KEY_VARIABLE = "DRESSAGE_BLACKBOX_KEY"
_LOCK = ".lock"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit codes: 0 done, 1 failed, 2 wrong use."""
    args = _parser().parse_args(argv)
    try:
        if args.command == "agents":
            return _agents(as_json=args.json)
        return _serve(args, os.environ)
    except BlackboxError as error:
        print(f"dressage-blackbox-server: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dressage-blackbox-server", description="Drive closed agent programs with idempotent turns."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser(
        "serve", help="serve the state machine over HTTP; programs run on this machine, uncontained"
    )
    serve.add_argument("--port", type=int, required=True, help="0 picks a free one; the ready line names it")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--state", type=Path, required=True, help="folder of the journal")
    serve.add_argument("--key-file", type=Path, help=f"file with the key; else the variable {KEY_VARIABLE}")
    serve.add_argument("--max-sessions", type=int, default=256)
    serve.add_argument("--max-running", type=int, default=64, help="turns that run at once; others queue")
    serve.add_argument(
        "--pass-env",
        action="append",
        default=["PATH", "LANG"],
        metavar="NAME",
        help="variable of this process that agent programs get too (PATH and LANG always)",
    )
    agents = commands.add_parser("agents", help="known agents, versions found, how to install")
    agents.add_argument("--json", action="store_true")
    return parser


def _agents(*, as_json: bool) -> int:
    found = asyncio.run(_statuses())
    if as_json:
        print(json.dumps([asdict(status) for status in found], indent=2))
        return 0
    for status in found:
        version = status.version or "-"
        print(
            f"{status.name:12} {version:12} {', '.join(status.dialects)}\n{'':12} install: {status.install}"
        )
    return 0


async def _statuses() -> list[AgentStatus]:
    return [await agent_status(adapter) for _, adapter in sorted(known_agents().items())]


def _serve(args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    # Imported here: `agents` and the library need no web server.
    import uvicorn

    from dressage_blackbox_server.server import build_app
    from dressage_blackbox_server.service import BlackboxService

    for name in ("max_sessions", "max_running"):
        if getattr(args, name) < 1:
            raise RequestError(f"--{name.replace('_', '-')} is {getattr(args, name)}: give 1 or more")
    key = _key(args.key_file, environ)
    base_env = {name: environ[name] for name in args.pass_env if name in environ and name != KEY_VARIABLE}

    async def run(journal: FileJournal) -> None:
        service = BlackboxService(
            lambda config: LocalExecutor(base_env),
            known_agents(),
            journal,
            max_sessions=args.max_sessions,
            max_running=args.max_running,
        )
        config = uvicorn.Config(build_app(service, key), log_level="warning", access_log=False)
        with _listen(args.host, args.port) as listening:
            host, port = listening.getsockname()[:2]
            print(f"dressage-blackbox-server ready on http://{host}:{port}", flush=True)
            await uvicorn.Server(config).serve(sockets=[listening])

    journal = FileJournal(args.state)
    with _alone(args.state):
        asyncio.run(run(journal))
    return 0


@contextlib.contextmanager
def _alone(state: Path) -> Iterator[None]:
    """Hold the journal's folder: two servers on one would each run turns that the other knows as done.

    The kernel lets go of it however this process ends. Raises :class:`RequestError`.
    """
    try:
        descriptor = os.open(state / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RequestError(f"--state {state} cannot be written: {error.strerror}; give another") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RequestError(
                f"--state {state} is another server's, which runs; end that one, or give another folder"
            ) from error
        yield
    finally:
        os.close(descriptor)


def _key(file: Path | None, environ: Mapping[str, str]) -> str:
    if file is not None:
        try:
            key = file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"--key-file {file} cannot be read: {error}") from error
    else:
        key = environ.get(KEY_VARIABLE, "").strip()
    if not key:
        raise RequestError(f"no key: give --key-file, or set {KEY_VARIABLE}")
    if not (key.isascii() and key.isprintable()):
        raise RequestError("the key cannot go in a header: give printable ASCII")
    return key


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket, so that a port in use is said before anything starts."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(256)
    except (OSError, OverflowError) as error:
        listening.close()
        raise RequestError(f"--port {port} on {host} cannot be used: {error}; give another") from error
    return listening


if __name__ == "__main__":
    sys.exit(main())
