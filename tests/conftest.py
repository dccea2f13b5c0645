"""Fixtures of the workspace's own tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from workspace import ROOT, Uv, find_uv


@pytest.fixture(scope="session")
def uv() -> Uv:
    """uv as set-up finds it."""
    return find_uv(Path(sys.executable))


@pytest.fixture(scope="session")
def tracked() -> list[Path]:
    """Every file that a commit of this tree would carry."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = (ROOT / name for name in done.stdout.split("\0") if name)
    return [path for path in paths if path.is_file()]
