"""One package alone, three ways: ``python3 scripts/lanes.py dressage-proxy [--lane wheel]``.

- ``isolated``: its tests run where only it, its declared dependencies and its test group are installed.
- ``declared``: deptry compares what the sources import with what the package declares.
- ``wheel``: the built wheel, installed outside the repository, is imported and used without the sources.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from workspace import (
    CACHE,
    HEAVY,
    LOCK,
    ROOT,
    Member,
    SetupError,
    Uv,
    closure,
    find_uv,
    fingerprint,
    member,
    members,
    venv_python,
)

LANES = CACHE / "lanes"
PINS = ("--constraint", LOCK, "--build-constraint", LOCK)


class LaneError(AssertionError):
    """A package does not stand alone; the message is what the tool said."""


def _say(command: Sequence[str | Path], cwd: Path, what: str) -> str:
    """Run a check, free of this process's Python settings; its failure carries its output."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "PYTEST_"))},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise LaneError(f"{what} ended with {done.returncode}\n{done.stdout.strip()[-12000:]}")
    return done.stdout.strip()


def _environment(
    uv: Uv, m: Member, lane: str, python: Path, *arguments: str | Path, needs_torch: bool
) -> Path:
    """A stamped environment of this lane, made from the given ``uv pip install`` arguments."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    venv = LANES / f"{m.name}-{lane}-{version}"
    expected = fingerprint(python, " ".join(str(a) for a in arguments))
    stamp = venv / ".stamp"
    if stamp.is_file() and stamp.read_text(encoding="ascii") == expected:
        return venv
    venv.parent.mkdir(parents=True, exist_ok=True)
    uv.create(venv, python)
    if needs_torch:
        uv.install_torch(venv)
    uv.install(venv, *arguments)
    stamp.write_text(expected, encoding="ascii")
    return venv


def _editable(m: Member) -> list[str | Path]:
    return [part for each in closure(m, members()) for part in ("--editable", each.folder)]


def isolated(uv: Uv, m: Member, python: Path, *, heavy: bool = True) -> str:
    """The last line of the package's own tests, run with its dependencies and its test group alone.

    Without ``heavy`` those so marked are left out, and those marked ``alone``: where they run in the whole
    workspace anyway, and beside other tests.
    """
    editable = _editable(m)
    group = f"{m.folder / 'pyproject.toml'}:test"
    venv = _environment(
        uv, m, "isolated", python, *PINS, *editable, "--group", group, needs_torch=m.needs_torch
    )
    command: list[str | Path] = [
        venv_python(venv),
        "-m",
        "pytest",
        "-q",
        "-c",
        ROOT / "pyproject.toml",
        "--rootdir",
        ROOT,
    ]
    if not heavy:
        command += ["-m", "not paid and not gpu and not nightly and not heavy and not alone"]
    said = _say([*command, "-p", "no:cacheprovider", m.folder / "tests"], ROOT, f"{m.name}'s own tests")
    return said.splitlines()[-1]


def declared(uv: Uv, m: Member, python: Path) -> str:
    """deptry over the sources, in an environment that has the package and its dependencies."""
    requirements = [*PINS, *_editable(m), "deptry>=0.20"]
    venv = _environment(uv, m, "declared", python, *requirements, needs_torch=m.needs_torch)
    command: list[str | Path] = [venv / "bin" / "deptry", "src", "--known-first-party", m.module, "--no-ansi"]
    _say(command, m.folder, f"{m.name}'s declared dependencies")
    return "what it imports is what it declares"


def build_wheels(uv: Uv, wanted: Sequence[Member], into: Path) -> dict[str, Path]:
    """Wheels of these members by name."""
    for m in wanted:
        uv("build", "--wheel", "--build-constraint", LOCK, "--out-dir", into, m.folder)
    return {m.name: next(into.glob(f"{m.module}-*.whl")) for m in wanted}


def wheel(uv: Uv, m: Member, python: Path) -> str:
    """The wheel in a fresh environment outside the repository: imported, typed, licensed, its example run."""
    needed = closure(m, members())
    with tempfile.TemporaryDirectory(prefix=f"{m.name}-wheel-") as name:
        place = Path(name)
        wheels = build_wheels(uv, needed, place / "wheels")
        venv = place / "venv"
        uv.create(venv, python)
        if m.needs_torch:
            uv.install_torch(venv)
        uv.install(venv, "--constraint", LOCK, "--no-sources", *wheels.values())
        check = shutil.copy(ROOT / "scripts" / "wheel_check.py", place)
        forbidden = [] if m.needs_torch else HEAVY
        return _say([venv_python(venv), "-I", check, m.name, *forbidden], place, f"{m.name}'s wheel")


CHECKS: dict[str, Callable[[Uv, Member, Path], str]] = {
    "isolated": isolated,
    "declared": declared,
    "wheel": wheel,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("package", choices=[m.name for m in members()])
    parser.add_argument(
        "--lane", choices=list(CHECKS), action="append", help="these lanes alone (repeatable)"
    )
    arguments = parser.parse_args()
    python = Path(sys.executable)
    failed = False
    try:
        uv = find_uv(python)
        for lane in arguments.lane or CHECKS:
            started = time.monotonic()
            try:
                said = CHECKS[lane](uv, member(arguments.package), python)
            except LaneError as error:
                failed, said = True, f"FAILS: {error}"
            seconds = time.monotonic() - started
            print(f"{arguments.package} {lane:9} ({seconds:.0f} s) {said}", flush=True)
    except SetupError as error:
        print(f"lanes: {error}", file=sys.stderr)
        return 2
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
