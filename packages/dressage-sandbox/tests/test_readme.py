from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_the_example_of_the_readme_runs() -> None:
    text = Path(__file__).parents[1].joinpath("README.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, re.S)
    done = subprocess.run(
        [sys.executable, "-c", block], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "0 b'42\\n'\n"
