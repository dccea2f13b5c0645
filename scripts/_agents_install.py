"""The agents' programs, from npm, at the versions that their adapters name; kept in .cache/agents."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from dressage_blackbox_server import AgentAdapter
from workspace import ROOT

FOLDER = ROOT / ".cache" / "agents"
INSIDE = "/agents"
"""Where a sandbox sees the folder."""

_NODE = "node@26"
_NODE_OF_NPM = 20
_INSTALL_S = 600


class InstallError(Exception):
    """A program that cannot be installed; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A program, and the folders with commands that its PATH needs, below ``FOLDER``."""

    version: str
    bins: tuple[str, ...]

    def path(self, root: str) -> str:
        """PATH where ``FOLDER`` is seen as ``root``."""
        return ":".join([*(f"{root}/{name}" for name in self.bins), "/usr/bin", "/bin"])


def install(adapter: AgentAdapter) -> Installed:
    """Install an agent's program where it is not there yet. Raises InstallError."""
    node = _package("node", _NODE, {})
    path = f"{FOLDER / node}:{os.environ.get('PATH', os.defpath)}"
    program = _package(adapter.name, adapter.npm, {"PATH": path})
    return Installed(adapter.npm.rpartition("@")[2], (node, program))


def _package(name: str, package: str, environment: Mapping[str, str]) -> str:
    """Its folder of commands, below ``FOLDER``."""
    bins, done = f"{name}/node_modules/.bin", FOLDER / name / "installed"
    if done.is_file() and done.read_text(encoding="utf-8") == package:
        return bins
    npm = _npm()
    print(f"agents: installing {package}", flush=True)
    try:
        shutil.rmtree(FOLDER / name, ignore_errors=True)
        (FOLDER / name).mkdir(parents=True)
        (FOLDER / name / "package.json").write_text(json.dumps({"private": True}), encoding="utf-8")
        subprocess.run(
            [npm, "install", "--no-fund", "--no-audit", "--loglevel", "error", package],
            cwd=FOLDER / name,
            env={**os.environ, **environment},
            check=True,
            capture_output=True,
            text=True,
            timeout=_INSTALL_S,
        )
        done.write_text(package, encoding="utf-8")
    except subprocess.CalledProcessError as error:
        raise InstallError(f"{package} does not install: {error.stderr[-2000:].strip()}") from error
    except subprocess.TimeoutExpired as error:
        raise InstallError(f"{package} does not install within {_INSTALL_S} s: is npm reachable?") from error
    except OSError as error:
        raise InstallError(f"{package} does not install: {error}") from error
    return bins


def _npm() -> str:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        missing = "npm" if npm is None else "node"
        raise InstallError(f"{missing} is not on PATH: install node {_NODE_OF_NPM} or later, with npm")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    check_node(version)
    return npm


def check_node(version: str) -> None:
    """Refuse a node whose npm would take other versions than those named. Raises InstallError."""
    found = re.match(r"v(\d+)\.", version)
    if found is None or int(found[1]) < _NODE_OF_NPM:
        raise InstallError(
            f"node {version or 'of no version'} is too old for npm: install {_NODE_OF_NPM} or later"
        )
