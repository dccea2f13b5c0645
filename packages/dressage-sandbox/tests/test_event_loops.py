"""Hosts bring their own event loop: servers and Ray workers run uvloop, with transports of its own kind."""

from __future__ import annotations

from pathlib import Path

import uvloop
from dressage_sandbox import BubblewrapProvider, SandboxSpec


def test_a_sandbox_works_under_uvloop(runtime_dir: Path) -> None:
    async def all_of_it() -> tuple[bytes, bytes]:
        provider = BubblewrapProvider(runtime_dir=runtime_dir, reaper=False)
        box = await provider.create(SandboxSpec())
        said = await box.run(["echo", "alive"], timeout_s=10)
        await box.write("a", b"x" * 100_000)
        read = await box.read("a")
        await provider.close()
        return said.stdout, read

    assert uvloop.run(all_of_it()) == (b"alive\n", b"x" * 100_000)
