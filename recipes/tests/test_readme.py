import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_readmes_example_runs():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, str(README), "exec"), {})
