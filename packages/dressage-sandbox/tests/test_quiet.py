"""What was left running in a sandbox, and a command that must have nothing beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from dressage_sandbox import BubblewrapProvider, BubblewrapSandbox, Limits, SandboxGone, SandboxSpec

FORGER = """
import os, time
while True:
    for pid in os.listdir('/proc'):
        if pid.isdigit() and int(pid) not in (1, os.getpid()):
            try:
                if b'verdict' in open(f'/proc/{pid}/cmdline', 'rb').read():
                    os.write(os.open(f'/proc/{pid}/fd/1', os.O_WRONLY), b'forged\\n')
            except OSError: pass
"""
VERDICT = ["sh", "-c", ": verdict; sleep 0.5; echo honest"]


async def leave(box: BubblewrapSandbox, program: str) -> None:
    """Let a command leave a daemon behind that says when it has begun."""
    await box.write("daemon.py", f"open('begun', 'w'); {program}".encode() if "\n" not in program else
                    b"open('begun', 'w')\n" + program.encode())  # fmt: skip
    await box.run("(setsid env -i /usr/bin/python3 daemon.py &) >/dev/null 2>&1")
    while not any(entry.name == "begun" for entry in await box.list(".")):
        await asyncio.sleep(0.01)


@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="needs the system's Python inside")
async def test_what_was_left_running_can_forge_a_later_commands_output_and_after_quiet_it_cannot(
    box: BubblewrapSandbox,
) -> None:
    await leave(box, FORGER)
    while b"forged" not in (await box.run(VERDICT)).stdout:
        pass  # it is there, and does what it can: on a busy machine not always soon enough
    await box.quiet()
    assert (await box.run(VERDICT)).stdout == b"honest\n"


async def test_a_fork_bomb_that_was_left_is_ended_and_its_room_is_free(provider: BubblewrapProvider) -> None:
    box = await provider.create(SandboxSpec(limits=Limits(pids=40)))
    await box.start(["sh", "-c", "bomb() { bomb | bomb & }; bomb; while :; do sleep 60 & done"])
    await asyncio.sleep(0.3)
    await box.quiet()
    assert (await box.run("sleep 0.1 & sleep 0.1 & wait; echo ok")).stdout == b"ok\n"


async def test_running_commands_and_services_end_as_killed_and_a_folder_that_is_packed_is_packed(
    box: BubblewrapSandbox, tmp_path: Path
) -> None:
    await box.run("head -c 60000000 /dev/urandom >large")
    service = await box.start(["sleep", "60"])
    running = asyncio.ensure_future(box.run("echo before; touch /tmp/begun; sleep 60", timeout_s=50))
    while not any(entry.name == "begun" for entry in await box.list("/tmp")):
        await asyncio.sleep(0.01)
    packing = asyncio.ensure_future(box.pack("/workspace", tmp_path / "tar"))
    await asyncio.sleep(0.05)
    await box.quiet()
    assert (await service.wait(5)).exit_code == 137
    result = await running
    assert (result.exit_code, result.stdout, result.timed_out) == (137, b"before\n", False)
    assert await packing > 60_000_000


async def test_an_ended_sandbox_has_nothing_to_quiet(box: BubblewrapSandbox) -> None:
    await box.terminate()
    with pytest.raises(SandboxGone):
        await box.quiet()
