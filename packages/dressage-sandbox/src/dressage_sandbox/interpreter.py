"""Which Python runs the exec agent inside, and the agent's bytecode for it.

The agent starts once per sandbox, so it is compiled once per provider: parsing it would cost as much CPU
time as starting the interpreter. The host's own environment is never mounted: only /usr's Python, or, where
there is none, the base interpreter and its standard library without any site-packages.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .errors import ProviderUnavailable

__all__ = ["FLAGS", "HOME", "Interpreter", "find_interpreter"]

HOME = "/opt/dressage/python"
"""Where a base interpreter that is not under /usr appears inside."""

_MODULES = ("wire", "capture", "system", "files", "tree", "command", "commands", "agent")
FLAGS = ("-I", "-S", "-E", "-B")
# Joins the modules to one and compiles that: relative imports between them fall away.
_COMPILE = """
import ast, marshal, sys
from importlib.util import MAGIC_NUMBER
body = []
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    body += [s for s in tree.body if not (isinstance(s, ast.ImportFrom) and s.level)]
code = compile(ast.Module(body, []), "agent", "exec", dont_inherit=True, optimize=2)
sys.stdout.buffer.write(MAGIC_NUMBER + bytes(12) + marshal.dumps(code))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python as seen inside. ``mounts`` are (host path, inside path); ``hidden`` are masked folders."""

    path: str
    mounts: tuple[tuple[Path, str], ...]
    hidden: tuple[str, ...]
    bytecode: bytes
    loader: tuple[str, ...] = ()
    """The beginning of its command line where it brings its own loader along."""

    @property
    def command(self) -> tuple[str, ...]:
        """How it is started inside."""
        return (*self.loader, self.path)


def find_interpreter(choice: str = "auto") -> Interpreter:
    """``system`` (/usr/bin/python3), ``base`` (this process's base interpreter) or ``auto``, in that order.

    Raises:
        ProviderUnavailable: none of those asked for starts.
    """
    finders = {"system": (_system,), "base": (_base,), "auto": (_system, _base)}[choice]
    for finder in finders:
        found = finder()
        if found is not None:
            return found
    raise ProviderUnavailable(
        f"interpreter={choice!r}: no Python >= 3.8 that can run inside; install python3 of the system"
    )


def _system() -> Interpreter | None:
    path = Path("/usr/bin/python3")
    if not path.exists():
        return None
    real = path.resolve()  # a link that leaves /usr leads nowhere inside
    version = re.fullmatch(r"python3\.(\d+)", real.name)
    if not str(real).startswith("/usr/") or (version and int(version.group(1)) < 8):
        return None
    bytecode = _compile_with(real)
    return Interpreter(str(real), (), (), bytecode) if bytecode else None


def _base() -> Interpreter | None:
    prefix = Path(sys.base_prefix)
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    program, library = prefix / "bin" / name, prefix / "lib" / name
    if not program.exists() or not library.is_dir():
        return None
    bytecode = _compile_with(program)
    if bytecode is None:
        return None
    if program.resolve().is_relative_to("/usr"):  # as in the official Python images: it is inside anyway
        return Interpreter(str(program.resolve()), (), (), bytecode)
    mounts = [(program.resolve(), f"{HOME}/bin/{name}"), (library, f"{HOME}/lib/{name}")]
    shared = sorted((prefix / "lib").glob(f"lib{name}*.so*"))
    mounts += [(lib.resolve(), f"{HOME}/lib/{lib.name}") for lib in shared]
    hidden = [d for d in ("site-packages", "test") if (library / d).is_dir()]
    return Interpreter(
        f"{HOME}/bin/{name}", tuple(mounts), tuple(f"{HOME}/lib/{name}/{d}" for d in hidden), bytecode
    )


def _compile_with(program: Path) -> bytes | None:
    modules = [Path(__file__).with_name("inside") / f"{name}.py" for name in _MODULES]
    try:
        done = subprocess.run(
            [program, *FLAGS, "-c", _COMPILE, *modules],
            capture_output=True, env={}, timeout=30, check=False,
        )  # fmt: skip
    except OSError:
        return None
    return done.stdout if done.returncode == 0 and done.stdout else None
