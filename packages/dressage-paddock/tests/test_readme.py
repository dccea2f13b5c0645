"""The example of the README runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_the_example_of_the_readme_runs():
    text = (Path(__file__).parents[1] / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "completed 1.0 2\n"
