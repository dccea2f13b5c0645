import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_readmes_example_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, str(README), "exec"), {})
    assert capsys.readouterr().out.strip(), "the reply"


def test_every_flag_that_the_readme_names_exists(capsys):
    from dressage_proxy.cli import _parser

    for line in re.findall(r"dressage-proxy (serve .*)", README.read_text()):
        assert _parser().parse_args(line.split()).command == "serve"
