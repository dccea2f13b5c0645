"""What a change must hold before it is tested: ``python scripts/lint.py [check …]``. Exit 0 iff all hold."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from workspace import ROOT, Member, members

BIN = Path(sys.executable).parent


def call(command: Sequence[str], cwd: Path = ROOT) -> bool:
    """Whether a tool is content; what it complains of goes to the terminal."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout.rstrip())
        print(done.stderr.rstrip(), file=sys.stderr)
    return done.returncode == 0


def tool(name: str) -> str:
    return str(BIN / name)


def formatting() -> bool:
    return call([tool("ruff"), "format", "--check", "--quiet", "."])


def rules() -> bool:
    return call([tool("ruff"), "check", "--quiet", "."])


def types() -> bool:
    packages = [argument for m in members() for argument in ("-p", m.module)]
    own = call([tool("mypy"), "--strict", "--no-error-summary", *packages])
    scripts = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "scripts").glob("*.py"))]
    return call([tool("mypy"), "--strict", "--no-error-summary", *scripts, "benchmarks"]) and own


def arrows() -> bool:
    return call([tool("lint-imports"), "--no-cache"])


def declared() -> bool:
    held = [_declared(m) for m in members()]
    return all(held)


def _declared(m: Member) -> bool:
    command = [tool("deptry"), "src", "--known-first-party", m.module, "--no-ansi"]
    held = call(command, cwd=m.folder)
    if not held:
        print(f"  (declared dependencies of {m.name})")
    return held


CHECKS: dict[str, Callable[[], bool]] = {
    "format": formatting,
    "rules": rules,
    "types": types,
    "arrows": arrows,
    "dependencies": declared,
}


def main() -> int:
    chosen = sys.argv[1:] or list(CHECKS)
    if unknown := [name for name in chosen if name not in CHECKS]:
        print(f"lint: unknown check {unknown[0]!r}; choose from {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    held = []
    for name in chosen:
        started = time.monotonic()
        held.append(CHECKS[name]())
        print(
            f"lint: {name:12} {'holds' if held[-1] else 'FAILS'}  {time.monotonic() - started:5.1f} s",
            flush=True,
        )
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
