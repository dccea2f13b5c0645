"""Rewrite requirements.lock: exact versions with sha256, no host, no path; torch left to its range."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from workspace import LOCK, ROOT, TORCH, SetupError, find_uv

HEADER = f"""\
# Made by `make lock` from the members' pyproject.toml files; edit those, not this.
# torch is not here: its CPU builds differ from the registry's, so it is installed by range ({TORCH}).
"""
FORBIDDEN = re.compile(r"://|^-e |^(--index|--extra-index|--find-links)| @ |(?:^|\s)/[a-z]+/", re.MULTILINE)


def export(uv_program: str, env: dict[str, str]) -> str:
    """What uv resolves for every member, group and Python, less torch and what only torch needs."""
    command = [
        uv_program,
        "export",
        "--quiet",
        "--format=requirements-txt",
        "--no-emit-workspace",
        "--all-groups",
        "--no-header",
        "--prune=torch",
    ]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(done.stderr.strip())
    return done.stdout


def check(text: str) -> None:
    """A lock that names a host, a path or an unhashed requirement must not be written."""
    if found := FORBIDDEN.search(text):
        raise SetupError(f"the exported lock names a host or a path: {found.group()!r}")
    if "sha256:" not in text:
        raise SetupError("the exported lock has no hashes")


def main() -> int:
    # The wheels of find-links hold for one Python only; a universal lock must not see them.
    uv = find_uv(Path(sys.executable))
    env = {k: v for k, v in uv.env.items() if k not in ("UV_FIND_LINKS", "PIP_FIND_LINKS")}
    upgrade = ["--upgrade"] if "--upgrade" in sys.argv[1:] else []
    try:
        subprocess.run([uv.program, "lock", "--quiet", *upgrade], cwd=ROOT, env=env, check=True)
        text = export(uv.program, env)
        check(text)
    except (SetupError, subprocess.CalledProcessError) as error:
        print(f"lock: {error}", file=sys.stderr)
        return 1
    LOCK.write_text(HEADER + text, encoding="utf-8")
    print(f"lock: {text.count('==')} requirements written to {LOCK.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
