from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from dressage_sandbox import BubblewrapSandbox, InvalidSpec, Limits, Mount, SandboxSpec
from dressage_sandbox.bwrap import parse_version
from dressage_sandbox.specs import check_spec


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
        (SandboxSpec(limits=Limits(memory_bytes=1e9)), "limits.memory_bytes"),  # type: ignore[arg-type]
        (SandboxSpec(limits=Limits(memory_bytes="1G")), "limits.memory_bytes"),  # type: ignore[arg-type]
        (SandboxSpec(limits=Limits(memory_bytes=1 << 70)), "limits.memory_bytes"),
        (SandboxSpec(limits=Limits(pids=1 << 40)), "limits.pids"),
        (SandboxSpec(limits=Limits(pids=True)), "limits.pids"),
        (SandboxSpec(limits=Limits(cpus=1e9)), "limits.cpus"),
        (SandboxSpec(limits=Limits(cpus=1e-3)), "limits.cpus"),
        (SandboxSpec(limits=Limits(cpus="2")), "limits.cpus"),  # type: ignore[arg-type]
        (SandboxSpec(limits=Limits(timeout_s="2")), "limits.timeout_s"),  # type: ignore[arg-type]
        (SandboxSpec(limits=2), "limits"),  # type: ignore[arg-type]
        (SandboxSpec(ttl_s="1"), "ttl_s"),  # type: ignore[arg-type]
        (SandboxSpec(workdir=Path("/w")), "workdir"),  # type: ignore[arg-type]
        (SandboxSpec(workdir="/\ud800"), "workdir"),
        (SandboxSpec(workdir="/var/tmp/x"), "workdir"),
        (SandboxSpec(mounts=("/etc",)), "mounts"),  # type: ignore[arg-type]
        (SandboxSpec(mounts=(Mount("/etc", "/x"),)), "mounts source"),  # type: ignore[arg-type]
        (SandboxSpec(mounts=(Mount(Path("/usr"), "/x"), Mount(Path("/etc"), "/x/"))), "mounts"),
        (SandboxSpec(mounts=(Mount(Path("/usr"), "/workspace"),)), "mounts"),
        (SandboxSpec(env={"A": 1}), "env 'A' is int"),  # type: ignore[dict-item]
        (SandboxSpec(env={"A": "\ud800"}), "env 'A'"),
        (SandboxSpec(env=[("A", "B")]), "env"),  # type: ignore[arg-type]
        (SandboxSpec(relay=80), "relay"),  # type: ignore[arg-type]
        (SandboxSpec(egress="example.com:443"), "egress is str"),
        (SandboxSpec(egress=(80,)), "egress"),  # type: ignore[arg-type]
        (SandboxSpec(root="/"), "root"),  # type: ignore[arg-type]
        (SandboxSpec(owner=1), "owner"),  # type: ignore[arg-type]
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


@pytest.mark.parametrize("command", [None, b"echo", Path("/bin/echo"), 3, ["echo", 1], ["echo", None]])
async def test_a_command_that_is_none_is_named(box: BubblewrapSandbox, command: object) -> None:
    with pytest.raises(TypeError, match="command"):
        await box.run(command)  # type: ignore[arg-type]


async def test_text_that_has_no_bytes_is_refused_by_the_arguments_name(box: BubblewrapSandbox) -> None:
    half = "a\ud800"
    for call, name in (
        (box.run(half), "command"),
        (box.run(["echo", half]), "command: argument 1"),
        (box.run("true", env={"A": half}), "env 'A'"),
        (box.run("true", cwd=half), "path"),
        (box.write(half, b""), "path"),
        (box.read(half), "path"),
    ):
        with pytest.raises(InvalidSpec, match=f"{name}.* lone surrogate"):
            await call


async def test_any_buffer_is_written_whole(box: BubblewrapSandbox) -> None:
    words = array("i", [1, 2, 3])
    await box.write("x", memoryview(words))  # type: ignore[arg-type]
    assert await box.read("x") == words.tobytes()


async def test_a_wait_for_no_number_of_seconds_is_refused(box: BubblewrapSandbox) -> None:
    service = await box.start(["sleep", "60"])
    with pytest.raises(InvalidSpec, match="timeout_s"):
        await service.wait(float("nan"))


def test_versions_are_compared_as_numbers() -> None:
    assert parse_version("bubblewrap 0.11.0") == (0, 11, 0)
    assert parse_version("bubblewrap 0.9.1") < parse_version("bubblewrap 0.11.0")
    assert parse_version("nonsense") == ()
