"""Providers whose every trace is looked for after each test."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import psutil
import pytest
from dressage_sandbox import BubblewrapProvider, BubblewrapSandbox, SandboxSpec
from dressage_sandbox.cgroups import detect

PR_SET_CHILD_SUBREAPER = 36
PATIENCE_S = 15.0


def _descendants(foreign: set[int]) -> list[str]:
    """Every process below this one, and any that was orphaned below it; those that just died are reaped.

    ``foreign``: children of others (another package's tests may share this process), with all below them.
    """
    alive = []
    for child in psutil.Process().children():
        if child.pid in foreign:
            continue
        try:
            if child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)
            for process in (child, *child.children(recursive=True)):
                alive.append(f"{process.pid} {' '.join(process.cmdline())[:120]}")
        except (psutil.NoSuchProcess, ChildProcessError):
            continue
    return alive


def _wait_until(condition: Callable[[], bool], what: str) -> None:
    """Until the condition holds."""
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up, what
        time.sleep(0.01)


@pytest.fixture
def descendants() -> Callable[[], list[str]]:
    """A look at the processes below this one that the test and its own fixtures started."""
    foreign = {child.pid for child in psutil.Process().children()}
    return lambda: _descendants(foreign)


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool], str], None]:
    """Waits until a condition holds."""
    return _wait_until


async def _until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Until the condition holds, in an event loop that runs on."""
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up
        await asyncio.sleep(0.01)


@pytest.fixture
def until() -> Callable[..., Awaitable[None]]:
    """Waits until a condition holds, in an event loop that runs on."""
    return _until


@pytest.fixture(scope="session")
def dead_owner() -> str:
    """The tag of a process of this machine that has ended."""
    code = "import dressage_sandbox.remote.owner as o; print(o.Tags().made_by)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def subreaper() -> Iterator[None]:
    """Orphans of processes that a test starts and kills come to this process, where they can be counted."""
    libc = ctypes.CDLL(None)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture
def runtime_dir(tmp_path: Path) -> Path:
    """A private runtime folder."""
    return tmp_path / "runtime"


@pytest.fixture
def leftovers(runtime_dir: Path, descendants: Callable[[], list[str]]) -> Callable[[], list[str]]:
    """What is left of sandboxes with this runtime folder: processes below us, records, control groups."""

    def find() -> list[str]:
        records = list(runtime_dir.iterdir()) if runtime_dir.exists() else []
        ids = {record.name.split(".")[0] for record in records} | seen_ids(runtime_dir)
        groups = [g for p in detect().parents.values() for i in ids for g in p.glob(f"dressage-*-{i}")]
        found = [str(p) for p in records] + [str(g) for g in groups]
        return found + descendants()

    return find


def seen_ids(runtime_dir: Path) -> set[str]:
    """Ids that a test noted for the search (see ``note``)."""
    note = runtime_dir.with_name("seen")
    return set(note.read_text().split()) if note.exists() else set()


@pytest.fixture
def note(runtime_dir: Path) -> Callable[[str], None]:
    """Remember a sandbox's id, so that its control groups are looked for afterwards."""

    def remember(sandbox_id: str) -> None:
        with runtime_dir.with_name("seen").open("a") as file:
            file.write(f"{sandbox_id}\n")

    return remember


@pytest.fixture
async def provider(
    runtime_dir: Path, leftovers: Callable[[], list[str]], note: Callable[[str], None]
) -> AsyncIterator[BubblewrapProvider]:
    """A provider; when the test is over nothing of it may be left."""
    made = BubblewrapProvider(runtime_dir=runtime_dir, reaper=False)  # which has tests of its own
    create = made.create

    async def noting(spec: SandboxSpec) -> BubblewrapSandbox:
        sandbox = await create(spec)
        note(sandbox.id)
        return sandbox

    made.create = noting  # type: ignore[method-assign]
    yield made
    await made.close()
    assert made.live() == []
    await asyncio.sleep(0)
    assert leftovers() == []


@pytest.fixture
async def box(provider: BubblewrapProvider) -> BubblewrapSandbox:
    """A sandbox with the default limits."""
    return await provider.create(SandboxSpec())


def _make_image(root: Path) -> None:
    for folder in ("bin", "etc", "opt/tool", "root", "tmp", "proc", "var/lib", "testbed/sub"):
        (root / folder).mkdir(parents=True)
    needed: set[str] = set()
    for name in ("sh", "ls", "cat", "id", "touch", "mkdir", "rm", "head", "env"):
        source = Path("/bin", name).resolve()
        shutil.copy(source, root / "bin" / name)
        needed |= set(re.findall(r"(/\S+\.so\S*)", subprocess.check_output(["ldd", source], text=True)))
    for library in needed:
        (root / library[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(library).resolve(), root / library[1:])
    (root / "etc/passwd").write_text("image:x:0:0::/:/bin/sh\n")
    (root / "testbed/sub/file").write_bytes(b"of the image\n")
    (root / "testbed/tool").write_text("#!/bin/sh\necho tool\n")
    (root / "testbed/tool").chmod(0o755)
    (root / "testbed/link").symlink_to("sub/file")
    (root / "elsewhere").symlink_to("/etc")
    for place, _, _ in os.walk(root):
        Path(place).chmod(0o755)


@pytest.fixture(scope="session")
def make_image() -> Callable[[Path], None]:
    """Fills a folder as an unpacked image: a few programs and their libraries, and no Python."""
    return _make_image
