"""Folders that runs are written to."""

from __future__ import annotations

import os
from pathlib import Path

from dressage_recipes.errors import UsageError


def new_folder(out: Path, name: str) -> Path:
    """The run's folder, made. ``name`` is the option or field that named it.

    Raises UsageError for one that holds something, since a run never writes over another, and for one that
    cannot be written.
    """
    writable = "name a folder that can be written"
    try:
        out.mkdir(parents=True, exist_ok=True)
        taken = any(out.iterdir())
    except OSError as error:
        raise UsageError(f"{name} {out}: {error.strerror}", fix=writable) from error
    if taken:
        raise UsageError(f"{name} {out}: the folder is not empty", fix="name a new one")
    if not os.access(out, os.W_OK):
        raise UsageError(f"{name} {out}: cannot be written", fix=writable)
    return out
