"""What the workspace is made of, and the one way its environments are filled.

Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
CACHE = ROOT / ".cache"
TOOLS = ROOT / ".venv-tools"
TORCH = "torch>=2.6,<2.14"
OLDEST_UV = (0, 8)
UV = "uv>=0.8"
HEAVY = ("accelerate", "megatron", "ray", "sglang", "slime", "torch", "transformers", "vllm")
OLDEST_PYTHON = (3, 11)


class SetupError(RuntimeError):
    """The workspace cannot be set up here; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Member:
    """One package of the workspace."""

    name: str
    folder: Path
    project: Mapping[str, object]

    @property
    def module(self) -> str:
        """Its import name: ``dressage_proxy`` for ``dressage-proxy``."""
        return self.name.replace("-", "_")

    @property
    def source(self) -> Path:
        """The folder of its import package."""
        return self.folder / "src" / self.module

    @property
    def dependencies(self) -> tuple[str, ...]:
        """Requirement lines as declared."""
        declared = self.project.get("dependencies", [])
        if not isinstance(declared, list):
            raise SetupError(f"{self.folder}/pyproject.toml: project.dependencies must be a list")
        return tuple(str(line) for line in declared)

    @property
    def siblings(self) -> tuple[str, ...]:
        """Names of the members that it declares itself."""
        names = (requirement_name(line) for line in self.dependencies)
        return tuple(name for name in names if name.startswith("dressage-"))

    @property
    def scripts(self) -> tuple[str, ...]:
        """Console commands that it installs."""
        declared = self.project.get("scripts", {})
        return tuple(declared) if isinstance(declared, dict) else ()

    @property
    def needs_torch(self) -> bool:
        """Whether torch is among its declared dependencies."""
        return any(requirement_name(line) == "torch" for line in self.dependencies)


def requirement_name(line: str) -> str:
    """The distribution that a requirement line is about: ``torch`` for ``torch>=2.6,<2.14``."""
    end = next((i for i, c in enumerate(line) if not (c.isalnum() or c in "-_.")), len(line))
    return line[:end].lower().replace("_", "-")


def members() -> list[Member]:
    """Every member of the workspace, leaves first."""
    folders = [*sorted((ROOT / "packages").glob("*/pyproject.toml")), ROOT / "recipes" / "pyproject.toml"]
    found = []
    for path in folders:
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        found.append(Member(project["name"], path.parent, project))
    return sorted(found, key=lambda m: (len(closure(m, found)), m.name))


def closure(member: Member, among: Sequence[Member]) -> list[Member]:
    """The member and every sibling that it needs, itself included."""
    by_name = {m.name: m for m in among}
    seen: dict[str, Member] = {}
    queue = [member]
    while queue:
        current = queue.pop()
        if current.name not in seen:
            seen[current.name] = current
            queue.extend(by_name[name] for name in current.siblings)
    return list(seen.values())


def member(name: str) -> Member:
    """The member of this name; an unknown name is an error that lists the known ones."""
    known = members()
    for candidate in known:
        if candidate.name == name:
            return candidate
    raise SetupError(f"no package is named {name!r}; choose one of {', '.join(m.name for m in known)}")


def fingerprint(python: Path, extra: str = "") -> str:
    """Changes when a lock, a pyproject, the interpreter or the folder does: then the environment is stale."""
    digest = hashlib.blake2b(digest_size=16)
    inputs = [LOCK, ROOT / "pyproject.toml", *(m.folder / "pyproject.toml" for m in members())]
    for path in inputs:
        digest.update(path.read_bytes() if path.exists() else b"absent")
    stamp = json.dumps([str(ROOT), str(python), sys.version, TORCH, extra])
    digest.update(stamp.encode())
    return digest.hexdigest()


def venv_python(venv: Path) -> Path:
    """The interpreter inside a virtual environment."""
    return venv / "bin" / "python"


def run(command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, quiet: bool = False) -> None:
    """Run a command; its failure is a :class:`SetupError` that carries its output."""
    done = subprocess.run(
        [str(part) for part in command],
        env=None if env is None else dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
        check=False,
    )
    if done.returncode:
        tail = "\n" + done.stdout.strip()[-4000:] if quiet and done.stdout else ""
        raise SetupError(f"{' '.join(str(p) for p in command[:4])} … ended with {done.returncode}{tail}")


class Uv:
    """uv, from the PATH or from a private folder of this checkout, with pip's own settings passed on."""

    def __init__(self, program: Path | str) -> None:
        self.program = str(program)
        self.env = {**os.environ, **_pip_settings_for_uv(os.environ)}
        self.env.pop("VIRTUAL_ENV", None)
        self.env.setdefault("UV_PYTHON_DOWNLOADS", "never")

    def __call__(self, *arguments: str | Path, env: Mapping[str, str] | None = None) -> None:
        """Run ``uv ARGUMENTS`` quietly."""
        run([self.program, *arguments], env={**self.env, **(env or {})}, quiet=True)

    def create(self, venv: Path, python: Path) -> None:
        """An empty environment for this interpreter, in place of what lay there."""
        if venv.exists():
            shutil.rmtree(venv)
        self("venv", "--no-project", "--python", python, venv)

    def install(self, venv: Path, *arguments: str | Path, env: Mapping[str, str] | None = None) -> None:
        """``uv pip install`` into this environment."""
        self("pip", "install", "--python", venv_python(venv), *arguments, env=env)

    def install_torch(self, venv: Path) -> str:
        """torch in its CPU build where one can be had. Says which source gave it.

        In order: a folder or page of ``UV_FIND_LINKS`` or ``PIP_FIND_LINKS`` that has it, the index that
        ``TORCH_INDEX`` names, uv's own CPU source, and last the ordinary registry (on x86_64 the CUDA
        build, about 5 GB).
        """
        if any(_may_hold_torch(place) for place in self.env.get("UV_FIND_LINKS", "").split(",")):
            self.install(venv, TORCH)
            return "find-links"
        if self.env.get("TORCH_INDEX"):
            self.install(venv, TORCH, "--index", self.env["TORCH_INDEX"])
            return "TORCH_INDEX"
        try:
            impatient = {"UV_HTTP_CONNECT_TIMEOUT": "10", "UV_HTTP_RETRIES": "1"}
            self.install(venv, TORCH, "--torch-backend", "cpu", env=impatient)
        except SetupError:
            print("setup: no CPU build of torch in reach, taking the registry's (about 5 GB on x86_64)")
            self.install(venv, TORCH)
            return "registry"
        return "cpu"


def _may_hold_torch(place: str) -> bool:
    """Whether a find-links place can give torch: a folder that has its wheel, or a page (not looked at)."""
    folder = Path(place.removeprefix("file://"))
    return any(folder.glob("torch-*.whl")) if folder.is_dir() else "://" in place


def _pip_settings_for_uv(env: Mapping[str, str]) -> dict[str, str]:
    """uv does not read pip's variables; whoever set them meant them for this too."""
    settings = {
        "UV_FIND_LINKS": ",".join(env.get("PIP_FIND_LINKS", "").split()),
        "UV_DEFAULT_INDEX": env.get("PIP_INDEX_URL", ""),
        "UV_INDEX": env.get("PIP_EXTRA_INDEX_URL", ""),
    }
    return {name: value for name, value in settings.items() if value and not env.get(name)}


def find_uv(python: Path) -> Uv:
    """uv from the PATH, else from a private environment that is made here once."""
    found = shutil.which("uv")
    if found and _recent(found):
        return Uv(found)
    private = TOOLS / "bin" / "uv"
    if not _recent(private):
        _bootstrap_uv(python)
    return Uv(private)


def _recent(program: Path | str) -> bool:
    """Whether this uv starts and is recent enough (a version manager's wrapper may exist and not start)."""
    try:
        done = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return False
    numbers = re.search(r"(\d+)\.(\d+)", done.stdout)
    return done.returncode == 0 and numbers is not None and tuple(map(int, numbers.groups())) >= OLDEST_UV


def _bootstrap_uv(python: Path) -> None:
    print(f"setup: installing uv into {TOOLS.name}")
    if TOOLS.exists():
        shutil.rmtree(TOOLS)
    try:
        run([python, "-m", "venv", TOOLS], quiet=True)
    except SetupError as error:
        shutil.rmtree(TOOLS, ignore_errors=True)
        _install_debian_venv(error)
        run([python, "-m", "venv", TOOLS], quiet=True)
    run([venv_python(TOOLS), "-m", "pip", "install", "--quiet", UV], quiet=True)


def _install_debian_venv(reason: SetupError) -> None:
    """Debian and Ubuntu ship Python without ensurepip; root can add it, others are told the command."""
    package = "python{}.{}-venv".format(*sys.version_info)
    if shutil.which("apt-get") is None:
        raise SetupError(
            f"python3 cannot make virtual environments here; install its venv module, or uv itself. {reason}"
        )
    if os.geteuid() != 0:
        raise SetupError(f"python3 has no venv module; run: sudo apt-get install -y {package}")
    print(f"setup: python3 has no venv module, installing {package} with apt-get")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-q"], env=quiet, quiet=True)
    run(["apt-get", "install", "-y", "-q", package], env=quiet, quiet=True)
