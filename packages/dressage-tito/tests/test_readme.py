from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_readmes_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    match = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert match is not None
    exec(compile(match.group(1), str(README), "exec"), {})
    said = capsys.readouterr().out
    assert said.startswith('shell {"command": "ls"}\n')
    assert "<tool_response>\na.txt\n</tool_response>" in said
