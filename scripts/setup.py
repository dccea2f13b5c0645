"""Make the workspace's environment once: ``python3 scripts/setup.py [--venv DIR]``.

A stamp inside the environment remembers what it was made from, so that a second run returns at once.
"""

from __future__ import annotations

import argparse
import fcntl
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workspace import (
    CACHE,
    LOCK,
    OLDEST_PYTHON,
    ROOT,
    SetupError,
    Uv,
    find_uv,
    fingerprint,
    members,
    venv_python,
)

STAMP = ".stamp"


def stamped(venv: Path, expected: str) -> bool:
    """Whether this environment was made, to the end, from what lies here now."""
    stamp = venv / STAMP
    return stamp.is_file() and stamp.read_text(encoding="ascii") == expected and venv_python(venv).exists()


def fill(uv: Uv, venv: Path) -> str:
    """Everything in the lock by hash, torch by range, the members editable. Says where torch came from."""
    uv("pip", "sync", "--python", venv_python(venv), "--require-hashes", LOCK)
    torch = uv.install_torch(venv)
    editable = [part for m in members() for part in ("--editable", m.folder)]
    uv.install(venv, "--no-deps", "--no-build-isolation", *editable)
    return torch


@contextmanager
def alone(venv: Path) -> Iterator[None]:
    """One set-up of this environment at a time: a second one waits, and finds it made."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{venv.name.lstrip('.')}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def set_up(venv: Path, python: Path) -> float:
    """Bring the environment up to date; returns the seconds that took (0.0 when it already was)."""
    expected = fingerprint(python)
    if stamped(venv, expected):
        return 0.0
    started = time.monotonic()
    uv = find_uv(python)
    print(f"setup: making {venv.name} with Python {sys.version.split()[0]} (once)", flush=True)
    (venv / STAMP).unlink(missing_ok=True)
    uv.create(venv, python)
    torch = fill(uv, venv)
    (venv / STAMP).write_text(expected, encoding="ascii")
    seconds = time.monotonic() - started
    print(f"setup: done in {seconds:.1f} s (torch from: {torch})", flush=True)
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--seconds-to", type=Path, help="write the seconds that set-up took into this file")
    arguments = parser.parse_args()
    if sys.version_info[:2] < OLDEST_PYTHON:
        print(f"setup: Python {sys.version.split()[0]} is too old, 3.11 or newer is needed", file=sys.stderr)
        return 2
    try:
        with alone(arguments.venv):
            seconds = set_up(arguments.venv, Path(sys.executable))
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 2
    if arguments.seconds_to:
        arguments.seconds_to.write_text(f"{seconds:.1f}", encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())
