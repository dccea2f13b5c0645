"""Run inside an environment that holds one built wheel: ``python -I wheel_check.py NAME [FORBIDDEN …]``.

Imports every public module, and checks what a user of the wheel relies on: types, licence, the README's
example, the commands. Standard library only. FORBIDDEN modules must not be loaded by any import.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path


def modules(package: str) -> Iterator[str]:
    """The package and every module in it that is not private and not a program."""
    root = importlib.import_module(package)
    yield package
    for found in pkgutil.walk_packages(root.__path__, f"{package}."):
        if not any(part.startswith("_") for part in found.name.split(".")):
            yield found.name


def import_all(package: str, forbidden: list[str]) -> int:
    """Import each; every one must come from this environment, and none may load a forbidden module."""
    count = 0
    for name in modules(package):
        origin = importlib.import_module(name).__file__
        if origin is None or not Path(origin).is_relative_to(sys.prefix):
            raise SystemExit(f"{name} was imported from {origin}, not from the wheel")
        if loaded := [heavy for heavy in forbidden if heavy in sys.modules]:
            raise SystemExit(f"importing {name} loads {', '.join(loaded)}")
        count += 1
    return count


def check_files(dist: Distribution, package: str) -> None:
    """The wheel carries its type marker and its licence."""
    files = [str(file) for file in dist.files or ()]
    if f"{package}/py.typed" not in files:
        raise SystemExit("the wheel has no py.typed")
    if not any(file.endswith("licenses/LICENSE") for file in files):
        raise SystemExit("the wheel has no licence")


def run_example(dist: Distribution) -> None:
    """The README's python block, in an empty folder."""
    body = dist.metadata.json.get("description")
    if not isinstance(body, str) or not (example := re.search(r"```python\n(.*?)```", body, re.DOTALL)):
        raise SystemExit("the README has no ```python example")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "example.py"
        program.write_text(example.group(1), encoding="utf-8")
        run([sys.executable, "-I", str(program)], folder, "the README's example")


def run_commands(dist: Distribution) -> None:
    """Each console script answers ``--help``."""
    for script in dist.entry_points.select(group="console_scripts"):
        program = Path(sysconfig.get_path("scripts")) / script.name
        run([str(program), "--help"], None, f"{script.name} --help")


def run(command: list[str], cwd: str | None, what: str) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise SystemExit(f"{what} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")


def main() -> None:
    name, *forbidden = sys.argv[1:]
    package = name.replace("-", "_")
    dist = distribution(name)
    count = import_all(package, forbidden)
    check_files(dist, package)
    run_example(dist)
    run_commands(dist)
    print(f"{count} modules of {name} {dist.version} import and its example runs, from the wheel alone")


if __name__ == "__main__":
    main()
