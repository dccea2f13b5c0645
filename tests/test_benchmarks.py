"""The runner of benchmarks: what it knows, and what it says of one that it does not know."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest
from workspace import ROOT

BENCHMARKS = sorted(p for p in (ROOT / "benchmarks").glob("*.py") if not p.stem.startswith("_"))


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_a_benchmark_has_a_main_and_says_what_it_measures(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
    assert "main" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_an_unknown_benchmark_is_refused_with_the_known_ones():
    command = [sys.executable, "-m", "benchmarks", "speed"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no benchmark is named speed" in done.stderr
    assert "store" in done.stderr
