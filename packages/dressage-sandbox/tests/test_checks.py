from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from dressage_sandbox import BubblewrapMissing, checks
from dressage_sandbox.checks import Level, examine
from dressage_sandbox.owner import Owner
from dressage_sandbox.owners import Record, Records

NAMES = ["bubblewrap", "sandbox leftovers", "user namespaces", "seccomp", "cgroups", "model relay"]


async def test_every_row_is_told_on_a_machine_that_can(runtime_dir: Path) -> None:
    findings = await examine(runtime_dir)
    assert [finding.name for finding in findings] == NAMES
    assert all(finding.level is not Level.FAIL for finding in findings), findings
    assert not runtime_dir.exists()  # noqa: ASYNC240


async def test_a_relay_is_asked_itself(runtime_dir: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert (await examine(runtime_dir, f"127.0.0.1:{port}"))[-1].level is Level.OK
    server.close()
    await server.wait_closed()
    gone = (await examine(runtime_dir, f"127.0.0.1:{port}"))[-1]
    assert (gone.name, gone.level) == ("model relay", Level.FAIL)
    assert gone.fix


async def test_leftovers_of_a_dead_owner_are_told_and_not_removed(runtime_dir: Path) -> None:
    records = Records(runtime_dir)
    records.prepare()
    me = Owner.this_process()
    records.put(Record("sb-1", Owner(me.pid, me.started + 1, me.boot), "", 1.0, 1.0, ()))
    (found,) = [f for f in await examine(runtime_dir) if f.name == "sandbox leftovers"]
    assert (found.level, found.fix) == (Level.WARN, "dressage-sandbox pool reap")
    assert len(records.all()) == 1


async def test_without_bubblewrap_the_rest_is_not_tried(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise BubblewrapMissing("no bwrap program")

    monkeypatch.setattr(checks, "find_bubblewrap", missing)
    findings = await examine(runtime_dir)
    assert [f.name for f in findings] == NAMES[:2]
    assert findings[0].level is Level.FAIL
