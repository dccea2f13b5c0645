"""``dressage-sandbox run|pool``: one command in a sandbox, and the sandboxes of this user."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import re
import select
import signal
import stat
import sys
import time
from collections.abc import Coroutine, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .archive import ArtifactArchive
from .cgroups import detect
from .errors import InvalidSpec, SandboxError
from .groups import sweep
from .owners import Record, Records, default_folder
from .protocol import Limits, Mount, RunResult, SandboxSpec
from .provider import BubblewrapProvider

__all__ = ["main"]

_SANDBOX_FAILED = 125
_STDOUT = 1
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes of ``run``: the command's own, 124 on a time-out, 125 when no sandbox could be made.

    128+n where signal n ended this program (13: nobody reads its output), and so the sandbox too.
    """
    options = _parser().parse_args(argv)
    records = Records(options.runtime_dir or default_folder())
    try:
        if options.command == "run":
            return _run(options)
        if options.action == "status":
            _status(records, as_json=options.json)
        else:
            _reap(records, options.every)
    except BrokenPipeError:  # who read the output has gone, as of `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter flushes it at its end
        return 128 + signal.SIGPIPE
    except SandboxError as error:
        print(f"dressage-sandbox: {error}", file=sys.stderr)
        return _SANDBOX_FAILED
    except KeyboardInterrupt:
        return 130
    return 0


def size(text: str) -> int:
    """``64``, ``64k``, ``512M``, ``2GiB`` -> bytes.

    Raises:
        argparse.ArgumentTypeError: it is not a size.
    """
    match = re.fullmatch(r"(\d+)\s*([kmg]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: write 512M, 2G or a number of bytes")
    return int(match.group(1)) * _UNITS[match.group(2)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dressage-sandbox", description=__doc__)
    parser.add_argument("--runtime-dir", type=Path, help="folder of the records of live sandboxes")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run one command in a sandbox of its own")
    defaults = Limits()
    run.add_argument("--memory", type=size, default=defaults.memory_bytes, help="bytes, for example 512M")
    run.add_argument("--disk", type=size, default=defaults.disk_bytes, help="bytes of /tmp and the workdir")
    run.add_argument("--output", type=size, default=1 << 20, help="bytes kept of each stream")
    run.add_argument("--pids", type=int, default=defaults.pids)
    run.add_argument("--open-files", type=int, default=defaults.open_files)
    run.add_argument("--cpus", type=float)
    run.add_argument("--timeout", type=float, default=defaults.timeout_s, help="seconds")
    run.add_argument("--relay", metavar="HOST:PORT", help="the model relay's address on this host")
    run.add_argument(
        "--egress", metavar="HOST:PORT", action="append", default=[], help="may be reached through a proxy"
    )
    run.add_argument("--root", type=Path, metavar="DIR", help="a folder that is / inside: an unpacked image")
    run.add_argument("--mount", metavar="SOURCE:TARGET", action="append", default=[], help="read-only")
    run.add_argument("--env", metavar="NAME=VALUE", action="append", default=[])
    run.add_argument("--stdin", action="store_true", help="hand on standard input, read to its end")
    run.add_argument("--workdir", default="/workspace")
    run.add_argument(
        "--stream",
        action="store_true",
        help="pass output on as it comes, all of it; else it is told, cut, at the end",
    )
    run.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="if the command fails, keep its work folder here, as a tar file",
    )
    run.add_argument("argv", nargs="+", metavar="CMD", help="after --")
    pool = commands.add_parser("pool", help="the sandboxes of this user on this machine")
    pool.add_argument("action", choices=("status", "reap"), help="reap removes what dead owners left")
    pool.add_argument("--json", action="store_true")
    pool.add_argument(
        "--every", type=float, metavar="SECONDS", help="reap again and again, until interrupted"
    )
    return parser


def _spec(options: argparse.Namespace) -> SandboxSpec:
    return SandboxSpec(
        mounts=tuple(_mount(text) for text in options.mount),
        env=dict(_variable(text) for text in options.env),
        workdir=options.workdir,
        limits=Limits(
            memory_bytes=options.memory, pids=options.pids, open_files=options.open_files,
            disk_bytes=options.disk, output_bytes=options.output, timeout_s=options.timeout,
            cpus=options.cpus,
        ),
        relay=options.relay,
        egress=tuple(options.egress),
        root=None if options.root is None else options.root.absolute(),
        owner="dressage-sandbox run",
        ttl_s=options.timeout + 60,
    )  # fmt: skip


def _mount(text: str) -> Mount:
    source, colon, target = text.rpartition(":")
    if not colon:
        raise InvalidSpec(f"--mount {text!r}: write SOURCE:TARGET")
    return Mount(Path(source).absolute(), target)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidSpec(f"--env {text!r}: write NAME=VALUE")
    return name, value


def _run(options: argparse.Namespace) -> int:
    spec = _spec(options)
    stdin = sys.stdin.buffer.read() if options.stdin else b""
    result = asyncio.run(_until_told_to_end(_in_sandbox(options, spec, stdin), watched=not options.stream))
    if isinstance(result, int):
        return result
    if not options.stream:
        sys.stdout.buffer.write(result.stdout)
        sys.stdout.buffer.flush()
        sys.stderr.buffer.write(result.stderr)
    if result.truncated and not options.stream:
        written = f"{result.stdout_bytes} + {result.stderr_bytes} bytes"
        print(f"dressage-sandbox: output cut; the command wrote {written}", file=sys.stderr)
    if result.timed_out:
        print(f"dressage-sandbox: ended after {spec.limits.timeout_s} s", file=sys.stderr)
    return result.exit_code


async def _in_sandbox(options: argparse.Namespace, spec: SandboxSpec, stdin: bytes) -> RunResult:
    provider = BubblewrapProvider(runtime_dir=options.runtime_dir)
    try:
        sandbox = await provider.create(spec)
        result = await sandbox.run(options.argv, stdin=stdin, on_output=_pass_on if options.stream else None)
        if options.keep is not None and result.exit_code != 0:
            archive = ArtifactArchive(options.keep, paths=(spec.workdir,))
            kept = await archive.save(sandbox, f"exit code {result.exit_code}")
            print(f"dressage-sandbox: the work folder is kept in {kept.folder}", file=sys.stderr)
        return result
    finally:
        await provider.close()


async def _until_told_to_end(work: Coroutine[Any, Any, RunResult], *, watched: bool) -> RunResult | int:
    """The result; or, where a signal or the end of our reader ends the work, the exit code that says so.

    Without that a sandbox would live on until somebody sees that its owner has gone.
    """
    loop, task, told = asyncio.get_running_loop(), asyncio.ensure_future(work), [0]

    def end(code: int) -> None:
        if not told[0]:  # once: the cleaning up that follows is not to be broken off
            told[0] = code
            task.cancel()

    def look() -> None:
        loop.remove_reader(_STDOUT)
        if _nobody_reads(_STDOUT):
            end(128 + signal.SIGPIPE)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with contextlib.suppress(
            RuntimeError, ValueError
        ):  # not the main thread: signals are another's there
            loop.add_signal_handler(number, end, 128 + number)
    if watched and stat.S_ISFIFO(os.fstat(_STDOUT).st_mode):
        loop.add_reader(_STDOUT, look)
    try:
        return await task
    except asyncio.CancelledError:
        if told[0] and task.cancelled():
            return told[0]
        raise
    finally:
        loop.remove_reader(_STDOUT)


def _nobody_reads(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _pass_on(stream: str, data: bytes) -> None:
    target = sys.stdout.buffer if stream == "stdout" else sys.stderr.buffer
    target.write(data)
    target.flush()


def _reap(records: Records, every_s: float | None) -> None:
    """Once, or until interrupted: then also what is left by owners that die meanwhile."""
    if every_s is not None and not every_s > 0:
        raise InvalidSpec(f"--every {every_s}: must be more than 0 seconds")
    while True:
        for sandbox_id in records.reap():
            print(f"removed {sandbox_id}", flush=True)
        for folder in sweep(detect().parents.values()):
            print(f"removed {folder}", flush=True)
        records.tidy()
        if every_s is None:
            return
        time.sleep(every_s)


def _status(records: Records, *, as_json: bool) -> None:
    found = records.all() if records.folder.is_dir() else []
    if as_json:
        print(json.dumps([_row(record) for record in found]))
        return
    for record in found:
        print(_line(record))
    print(f"{len(found)} sandboxes, {sum(not r.owner.alive() for r in found)} of dead owners")


def _row(record: Record) -> dict[str, object]:
    """A record for a program; what has no end is null, since JSON knows no infinity."""
    fields = {k: None if v == math.inf else v for k, v in asdict(record).items()}
    return {**fields, "owner_alive": record.owner.alive()}


def _line(record: Record) -> str:
    state = "live" if record.owner.alive() else "owner is dead: reap"
    age = time.time() - record.created
    return f"{record.id}  pid {record.pid}  owner {record.owner.pid} {record.label!r}  {age:.0f} s  {state}"


if __name__ == "__main__":
    sys.exit(main())
