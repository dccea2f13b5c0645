"""Set-up: which Python, which uv, when it is done again, and what each refusal says."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import setup
import workspace
from workspace import ROOT, SetupError, Uv, closure, find_uv, fingerprint, member, members, requirement_name


def program(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def find_python(path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = ["/bin/sh", str(ROOT / "scripts" / "find_python.sh")]
    return subprocess.run(
        command, env={"PATH": str(path), **env}, capture_output=True, text=True, check=False
    )


def test_a_machine_without_a_recent_python_is_told_what_to_install(tmp_path: Path) -> None:
    program(tmp_path / "python3", "exit 1")
    done = find_python(tmp_path)
    assert done.returncode == 2
    assert "3.11 or newer" in done.stderr
    assert "apt-get install python3" in done.stderr


def test_the_first_python_that_is_recent_enough_is_taken(tmp_path: Path) -> None:
    program(tmp_path / "python3", "exit 1")
    (tmp_path / "python3.12").symlink_to(sys.executable)
    done = find_python(tmp_path)
    assert done.returncode == 0
    assert Path(done.stdout.strip()).name == "python3.12"


def test_a_version_that_pyenv_holds_is_found_although_its_wrapper_refuses_it(tmp_path: Path) -> None:
    program(tmp_path / "python3.12", "echo 'pyenv: python3.12: command not found' >&2; exit 127")
    held = tmp_path / "pyenv" / "versions" / "3.12.1" / "bin"
    held.mkdir(parents=True)
    (held / "python").symlink_to(sys.executable)
    done = find_python(tmp_path, PYTHON="3.12", PYENV_ROOT=str(tmp_path / "pyenv"))
    assert (done.returncode, Path(done.stdout.strip()).parent) == (0, held)


@pytest.mark.parametrize("asked", ["3.9", "/no/such/python"])
def test_a_python_that_was_asked_for_and_is_not_there_is_named(tmp_path: Path, asked: str) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    done = find_python(tmp_path, PYTHON=asked)
    assert done.returncode == 2
    assert f"PYTHON={asked}" in done.stderr


@pytest.mark.parametrize(
    ("said", "code", "taken"),
    [("uv 0.8.1", 0, True), ("uv 1.0.0", 0, True), ("uv 0.4.30", 0, False), ("", 127, False)],
)
def test_a_uv_that_is_old_or_does_not_start_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, code: int, taken: bool
) -> None:
    found = program(tmp_path / "uv", f"echo '{said}'; exit {code}")
    (tmp_path / "tools" / "bin").mkdir(parents=True)
    private = program(tmp_path / "tools" / "bin" / "uv", "echo uv 0.9.0")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(workspace, "TOOLS", tmp_path / "tools")
    assert find_uv(Path(sys.executable)).program == str(found if taken else private)


def test_a_python_without_venv_says_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = program(tmp_path / "python3", "echo 'ensurepip is not available'; exit 1")
    program(tmp_path / "apt-get", "exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(workspace, "TOOLS", tmp_path / "tools")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(
        workspace.shutil, "which", lambda name: None if name == "uv" else str(tmp_path / name)
    )
    package = f"python3.{sys.version_info.minor}-venv"
    with pytest.raises(SetupError, match=f"sudo apt-get install -y {package}"):
        find_uv(python)


def test_what_pip_was_told_is_told_to_uv_unless_uv_was_told_itself() -> None:
    told = workspace._pip_settings_for_uv(
        {"PIP_FIND_LINKS": "/a /b", "PIP_INDEX_URL": "mirror", "UV_DEFAULT_INDEX": "other"}
    )
    assert told == {"UV_FIND_LINKS": "/a,/b"}


def test_the_fingerprint_changes_with_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(Path(sys.executable))
    assert fingerprint(Path(sys.executable)) == before
    other = tmp_path / "requirements.lock"
    other.write_text("a==1\n")
    monkeypatch.setattr(workspace, "LOCK", other)
    assert fingerprint(Path(sys.executable)) != before


def test_an_environment_is_current_only_when_it_was_made_to_the_end(tmp_path: Path) -> None:
    assert not setup.stamped(tmp_path, "x")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    assert not setup.stamped(tmp_path, "x")
    (tmp_path / ".stamp").write_text("x")
    assert setup.stamped(tmp_path, "x")
    assert not setup.stamped(tmp_path, "y")


def test_a_current_environment_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_python: Path) -> Uv:
        raise AssertionError("set-up began although nothing changed")

    monkeypatch.setattr(setup, "find_uv", never)
    monkeypatch.setattr(setup, "stamped", lambda _venv, _expected: True)
    assert setup.set_up(tmp_path, Path(sys.executable)) == 0.0


def test_a_second_set_up_at_the_same_time_waits_for_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "CACHE", tmp_path)
    order: list[str] = []

    def second() -> None:
        with setup.alone(tmp_path / ".venv"):
            order.append("second")

    with setup.alone(tmp_path / ".venv"):
        other = threading.Thread(target=second)
        other.start()
        other.join(0.2)
        order.append("first")
    other.join()
    assert order == ["first", "second"]


def test_the_cpu_build_of_torch_is_looked_for_before_the_registrys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[tuple[object, ...]] = []

    def install(_self: Uv, _venv: Path, *arguments: object, **_env: object) -> None:
        tried.append(arguments)
        if "--torch-backend" in arguments:
            raise SetupError("not in reach")

    monkeypatch.setattr(Uv, "install", install)
    for name in ("UV_FIND_LINKS", "PIP_FIND_LINKS", "TORCH_INDEX"):
        monkeypatch.delenv(name, raising=False)
    assert Uv("uv").install_torch(Path("v")) == "registry"
    assert tried == [(workspace.TORCH, "--torch-backend", "cpu"), (workspace.TORCH,)]
    monkeypatch.setenv("TORCH_INDEX", "mine")
    assert Uv("uv").install_torch(Path("v")) == "TORCH_INDEX"
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert Uv("uv").install_torch(Path("v")) == "TORCH_INDEX"  # the folder has wheels, but none of torch
    (tmp_path / "torch-2.13.0-cp311-none-any.whl").touch()
    assert Uv("uv").install_torch(Path("v")) == "find-links"


def test_a_failed_command_says_what_it_printed() -> None:
    with pytest.raises(SetupError, match=r"ended with 3\nreason"):
        workspace.run([sys.executable, "-c", "print('reason'); raise SystemExit(3)"], quiet=True)


def test_the_members_are_known_leaves_first() -> None:
    names = [m.name for m in members()]
    assert names[-1] == "dressage-recipes"
    assert names.index("dressage-segments") < names.index("dressage-store") < names.index("dressage-proxy")
    assert {m.name for m in closure(member("dressage-store"), members())} == {
        "dressage-segments",
        "dressage-store",
    }


def test_an_unknown_package_lists_the_known_ones() -> None:
    with pytest.raises(SetupError, match=r"choose one of .*dressage-tito"):
        member("dressage-nothing")


def test_a_requirement_line_is_read_to_its_name() -> None:
    lines = ("torch>=2.6,<2.14", "A_b[c]>1", "x ; python_version < '3'")
    assert [requirement_name(line) for line in lines] == ["torch", "a-b", "x"]


def test_every_make_target_says_what_it_does() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = next(line for line in text.splitlines() if line.startswith(".PHONY:")).split()[1:]
    said = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert all(f"make {target} " in said for target in phony)
