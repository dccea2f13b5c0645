import json
import socket
import subprocess
import sys

import pytest
from dressage_recipes import doctor
from dressage_recipes.cli import main
from dressage_recipes.doctor import Level, Row, describe, examine, passes, to_json


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return examine(tmp_path_factory.mktemp("runs"))


def test_this_machine_runs_the_default_path(rows):
    assert passes(rows), describe(rows)


def test_every_promised_check_is_there(rows):
    own = {"python", "packages", "torch", "memory", "disk", "loopback", "processes"}
    sandbox = {"bubblewrap", "user namespaces", "seccomp", "cgroups", "model relay", "sandbox leftovers"}
    assert own | sandbox <= {row.check for row in rows}


def test_what_is_not_right_says_how_to_mend_it(rows):
    assert all(row.fix for row in rows if row.level is not Level.OK)


def test_a_failed_check_fails_the_whole_and_a_warning_does_not():
    fine, odd, bad = (Row("x", level, "it is so", "do this") for level in Level)
    assert passes([fine, odd])
    assert not passes([fine, bad])
    assert not to_json([bad])["ok"]
    assert describe([bad])[1].strip() == "fix: do this"
    assert "NOT" in describe([bad])[-1]


def test_json_lists_each_check_with_its_fix(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ok"]
    assert all(row.keys() == {"check", "level", "finding", "fix"} for row in said["checks"])


def test_little_memory_is_found(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 900000 kB\nMemAvailable: 500000 kB\n")
    (row,) = doctor._memory(meminfo)
    assert (row.level, row.finding) == (Level.FAIL, "0.5 GiB available")
    assert row.fix


def test_a_full_disk_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _path: type("Usage", (), {"free": 1 << 20}))
    (row,) = doctor._disk(tmp_path / "not" / "there")
    assert row.level is Level.WARN
    assert "--out" in row.fix


def test_a_missing_package_is_found(monkeypatch):
    monkeypatch.setattr(doctor, "PACKAGES", ("dressage-segments", "dressage-nowhere"))
    (row,) = doctor._packages()
    assert row.level is Level.FAIL
    assert "dressage-nowhere" in row.finding


def test_forbidden_user_namespaces_are_a_failure_with_their_fix(monkeypatch):
    import dressage_sandbox

    async def forbidden(_self):
        raise dressage_sandbox.UserNamespacesForbidden(
            "user namespaces are not allowed here. To fix: sysctl -w x=1"
        )

    monkeypatch.setattr(dressage_sandbox.BubblewrapProvider, "probe", forbidden)
    (row,) = (row for row in doctor._sandbox() if row.level is Level.FAIL)
    assert row.check == "user namespaces"
    assert "sysctl -w x=1" in row.finding
    assert row.fix


def test_a_closed_loopback_is_found(monkeypatch):
    def refuse(*_arguments, **_options):
        raise OSError("network is unreachable")

    monkeypatch.setattr(socket, "create_server", refuse)
    (row,) = doctor._loopback()
    assert row.level is Level.FAIL


ENGINE = b"python\0-m\0dressage_recipes.local.engine\0"
SERVED = b"python\0-m\0dressage_proxy.cli\0serve\0--control-key-file\0"
OF_A_RUN = SERVED + b"/tmp/dressage-run-x1/control.key\0"
A_SERVICE = SERVED + b"/etc/dressage/key\0"


@pytest.mark.parametrize(
    ("first", "found"),
    [(b"/sbin/init\0", "kill 41 43"), (b"python\0/opt/bin/dressage\0demo\0", "")],
    ids=["an init", "a run in a container"],
)
def test_an_orphan_of_an_earlier_run_is_found_and_neither_a_live_runs_nor_a_service(tmp_path, first, found):
    for pid, parent, command in (
        (1, 0, first),
        (41, 1, ENGINE),
        (42, 40, ENGINE),
        (43, 1, OF_A_RUN),
        (44, 1, A_SERVICE),
    ):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "cmdline").write_bytes(command)
        (folder / "stat").write_text(f"{pid} (python (x) y) S {parent} 1 1 0")
    uid = (tmp_path / "41").stat().st_uid
    (row,) = doctor._leftovers(tmp_path, uid)
    assert sorted(row.fix.split()) == sorted(found.split())
    assert row.level is (Level.WARN if found else Level.OK)


def test_a_broken_sandbox_package_is_a_finding_not_a_crash():
    code = (
        "import sys; sys.modules['dressage_sandbox'] = None\n"
        "from dressage_recipes import doctor\n"
        "(row,) = doctor._sandbox()\n"
        "assert row.level is doctor.Level.FAIL, row\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
