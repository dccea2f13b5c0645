"""Folders that runs are written to."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from dressage_recipes.errors import UsageError

LOCK = ".lock"
_MADE = frozenset({LOCK, "config.toml", "logs", "steps.jsonl", "store"})
"""What a run makes before anything is sampled."""


@contextlib.contextmanager
def run_folder(out: Path, name: str) -> Iterator[Path]:
    """The folder of one run, made, and held until the run ends. ``name``: the option or field that named it.

    A folder in which an earlier run ended before it sampled anything is taken again; one that this run leaves
    so, because it was stopped or its configuration is wrong, is removed. Raises UsageError for a folder that
    holds something else, since a run never writes over another, for one that another run holds now, and for
    one that cannot be written.
    """
    with _held(out, name):
        if sampled(out):
            raise UsageError(f"{name} {out}: the folder is not empty", fix="name a new one")
        _clear(out)
        try:
            yield out
        except (KeyboardInterrupt, UsageError):
            if not sampled(out):
                _clear(out)
                shutil.rmtree(out, ignore_errors=True)
            raise


def sampled(out: Path) -> bool:
    """Whether the folder holds what a run sampled, or anything that is no run's beginning."""
    if not out.is_dir():
        return False
    if not {path.name for path in out.iterdir()} <= _MADE:
        return True
    return any(any((out / "store" / kind).glob("*")) for kind in ("log", "trajectories", "retained"))


@contextlib.contextmanager
def _held(out: Path, name: str) -> Iterator[None]:
    """Make the folder and hold its lock, which the kernel releases however the run ends."""
    descriptor = _locked(out, name)
    while not _is_named(descriptor, out / LOCK):  # a run that ended just now has removed it
        os.close(descriptor)
        descriptor = _locked(out, name)
    try:
        yield
    finally:
        (out / LOCK).unlink(missing_ok=True)
        os.close(descriptor)


def _locked(out: Path, name: str) -> int:
    try:
        out.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(out / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        said = getattr(error, "strerror", None) or error
        raise UsageError(f"{name} {out}: {said}", fix="name a folder that can be written") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise UsageError(f"{name} {out}: another run writes there now", fix="name a new one") from error
    return descriptor


def _is_named(descriptor: int, path: Path) -> bool:
    """Whether the file still has its name; another one of that name would be another's lock."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _clear(out: Path) -> None:
    for name in sorted(_MADE - {LOCK}):
        path = out / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
