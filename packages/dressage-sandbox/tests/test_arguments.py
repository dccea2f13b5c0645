from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from dressage_sandbox import BubblewrapSandbox, InvalidSpec, Limits, Mount, SandboxSpec
from dressage_sandbox.arguments import check_spec
from dressage_sandbox.bwrap import parse_version


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (SandboxSpec(limits=Limits(memory_bytes=1)), "limits.memory_bytes"),
        (SandboxSpec(limits=Limits(pids=1)), "limits.pids"),
        (SandboxSpec(limits=Limits(timeout_s=0)), "limits.timeout_s"),
        (SandboxSpec(limits=Limits(timeout_s=float("nan"))), "limits.timeout_s"),
        (SandboxSpec(limits=Limits(timeout_s=float("inf"))), "limits.timeout_s"),
        (SandboxSpec(limits=Limits(cpus=0)), "limits.cpus"),
        (SandboxSpec(limits=Limits(cpus=float("inf"))), "limits.cpus"),
        (SandboxSpec(workdir="//usr/lib"), "workdir"),
        (SandboxSpec(workdir="relative"), "workdir"),
        (SandboxSpec(workdir="/a/../b"), "workdir"),
        (SandboxSpec(workdir="/usr/lib"), "workdir"),
        (SandboxSpec(workdir="/"), "workdir"),
        (SandboxSpec(mounts=(Mount(Path("/nonexistent"), "/x"),)), "mounts"),
        (SandboxSpec(mounts=(Mount(Path("/usr"), "/proc/x"),)), "mounts target"),
        (SandboxSpec(env={"A=B": "1"}), "env"),
        (SandboxSpec(env={"A": "\0"}), "env"),
        (SandboxSpec(relay="x"), "relay"),
        (SandboxSpec(ttl_s=0), "ttl_s"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(spec: SandboxSpec, field: str) -> None:
    with pytest.raises(InvalidSpec, match=field.replace(".", r"\.")):
        check_spec(spec)


def test_a_good_spec_is_accepted() -> None:
    check_spec(replace(SandboxSpec(), workdir="/testbed", mounts=(Mount(Path("/usr"), "/testbed/usr"),)))


@pytest.mark.parametrize("command", [[], [""], ["a\0b"], ""])
async def test_commands_without_a_program_are_refused(box: BubblewrapSandbox, command: object) -> None:
    if command == "":
        assert (await box.run("")).exit_code == 0  # as sh -c '' does
        return
    with pytest.raises(InvalidSpec, match="command"):
        await box.run(command)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["", "a\0b"])
async def test_paths_that_no_file_has_are_refused(box: BubblewrapSandbox, path: str) -> None:
    for call in (box.read(path), box.write(path, b""), box.list(path)):
        with pytest.raises(InvalidSpec, match="path"):
            await call


def test_versions_are_compared_as_numbers() -> None:
    assert parse_version("bubblewrap 0.11.0") == (0, 11, 0)
    assert parse_version("bubblewrap 0.9.1") < parse_version("bubblewrap 0.11.0")
    assert parse_version("nonsense") == ()
