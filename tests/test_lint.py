"""The checks of ``make lint`` hold, so that ``make test`` alone says whether a change may land."""

from __future__ import annotations

import subprocess
import sys

import lint
import pytest
from workspace import ROOT


@pytest.mark.parametrize("check", [name for name in lint.CHECKS if name != "dependencies"])
def test_lint_holds(check: str, capfd: pytest.CaptureFixture[str]) -> None:
    held = lint.CHECKS[check]()
    said = capfd.readouterr()
    assert held, f"{said.out}\n{said.err}"


def test_lint_names_a_check_that_it_does_not_know() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "lint.py"), "spelling"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "unknown check 'spelling'" in done.stderr
