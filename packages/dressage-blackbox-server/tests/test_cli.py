"""The command line."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest
from dressage_blackbox_server import cli
from dressage_blackbox_server.cli import KEY_VARIABLE, main


def test_agents_lists_what_is_known(capsys):
    assert main(["agents"]) == 0
    assert "command" in capsys.readouterr().out
    assert main(["agents", "--json"]) == 0
    found = {agent["name"]: agent["install"] for agent in json.loads(capsys.readouterr().out)}
    assert {"command", "claude_code", "codex", "openclaw", "opencode"} <= set(found)
    assert all(found.values())


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ([], "DRESSAGE_BLACKBOX_KEY"),
        (["--key-file", "/no/such/file"], "--key-file /no/such/file cannot be read"),
        (["--max-running", "0"], "--max-running is 0"),
    ],
)
def test_serve_refuses_what_cannot_work_by_name(capsys, monkeypatch, tmp_path, more, told):
    monkeypatch.delenv("DRESSAGE_BLACKBOX_KEY", raising=False)
    assert main(["serve", "--port", "0", "--state", str(tmp_path), *more]) == 1
    assert told in capsys.readouterr().err


def test_serve_says_that_its_port_is_in_use(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("DRESSAGE_BLACKBOX_KEY", "k")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port), "--state", str(tmp_path)]) == 1
    assert f"--port {port}" in capsys.readouterr().err


def test_serve_says_that_its_state_folder_cannot_be_made(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("DRESSAGE_BLACKBOX_KEY", "k")
    (tmp_path / "file").write_text("")
    assert main(["serve", "--port", "0", "--state", str(tmp_path / "file")]) == 1
    assert "cannot be made" in capsys.readouterr().err


def test_a_second_server_on_the_same_state_is_refused_and_one_after_it_is_not(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv(KEY_VARIABLE, "key")
    command = [sys.executable, "-m", "dressage_blackbox_server.cli", "serve", "--port", "0"]
    first = subprocess.Popen([*command, "--state", str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout is not None
        assert "ready on" in first.stdout.readline()
        assert main(["serve", "--port", "0", "--state", str(tmp_path)]) == 1
        assert f"--state {tmp_path} is another server's" in capsys.readouterr().err
    finally:
        first.kill()
        first.communicate()
    with cli._alone(tmp_path):  # a killed server holds nothing
        pass


@pytest.mark.parametrize("key", ["clé", "a\x07b"])
def test_a_key_that_no_header_can_carry_is_refused(key, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv(KEY_VARIABLE, key)
    assert main(["serve", "--port", "0", "--state", str(tmp_path)]) == 1
    assert "printable ASCII" in capsys.readouterr().err
