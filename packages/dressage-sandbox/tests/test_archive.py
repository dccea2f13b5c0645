from __future__ import annotations

import asyncio
import json
import os
import tarfile
import time
from pathlib import Path

import pytest
from dressage_sandbox import (
    BubblewrapProvider,
    BubblewrapSandbox,
    InvalidSpec,
    Limits,
    SandboxError,
    SandboxSpec,
)
from dressage_sandbox.archive import ArtifactArchive
from dressage_sandbox.heartbeat import kept_alive


async def test_a_failed_sandbox_leaves_its_folders_and_why(box: BubblewrapSandbox, tmp_path: Path) -> None:
    archive = ArtifactArchive(tmp_path / "kept", paths=("/workspace", "/tmp/logs", "/missing"))
    long = "x" * 120
    await box.run(
        f"mkdir -p /tmp/logs a/{long}; echo log >/tmp/logs/l; printf '\\0\\377' >a/{long}/{long}; "
        "ln -s a link; chmod 640 a/*/*; mkfifo fifo; touch '\xff'"
    )
    with pytest.raises(ZeroDivisionError):
        async with archive.on_failure(box):
            raise ZeroDivisionError("the agent's fault")
    (kept,) = archive.folder.iterdir()
    about = json.loads((kept / "about.json").read_text())
    assert about["id"] == box.id
    assert about["why"] == "ZeroDivisionError: the agent's fault"
    assert list(about["missing"]) == ["/missing"]
    with tarfile.open(kept / "workspace.tar") as tar:
        names = tar.getnames()
        inner = tar.extractfile(f"a/{long}/{long}")
        assert inner is not None
        assert inner.read() == b"\x00\xff"
        assert tar.getmember(f"a/{long}/{long}").mode == 0o640
        assert tar.getmember("link").linkname == "a"
    assert "fifo" not in names
    assert len(names) == 5
    with tarfile.open(kept / "tmp_logs.tar") as tar:
        assert tar.getnames() == ["l"]


async def test_what_the_inside_made_unreadable_is_kept_and_stays_so(
    box: BubblewrapSandbox, tmp_path: Path
) -> None:
    await box.run(
        "mkdir -p a/b c; echo 1 >a/b/f; echo 2 >c/g; echo 3 >h; "
        "chmod 000 a/b/f a/b a h; chmod 400 c; chmod 000 ."
    )
    before = (await box.run("stat -c '%a %n' /workspace", cwd="/tmp")).stdout
    kept = await ArtifactArchive(tmp_path / "kept").save(box, "why")
    assert kept.missing == {}
    with tarfile.open(kept.folder / "workspace.tar") as tar:
        modes = {member.name: member.mode for member in tar.getmembers()}
        inner = tar.extractfile("a/b/f")
        assert inner is not None
        assert inner.read() == b"1\n"
    assert modes == {"a": 0, "a/b": 0, "a/b/f": 0, "c": 0o400, "c/g": 0o644, "h": 0}
    assert (await box.run("stat -c '%a %n' /workspace", cwd="/tmp")).stdout == before == b"0 /workspace\n"
    told = await box.run("chmod 700 /workspace && cd /workspace && stat -c %a a h c", cwd="/")
    assert told.stdout == b"0\n0\n400\n"


async def test_folders_with_names_that_look_alike_are_kept_apart(
    box: BubblewrapSandbox, tmp_path: Path
) -> None:
    await box.run("mkdir -p /tmp/a/b /tmp/a_b; echo 1 >/tmp/a/b/f; echo 2 >/tmp/a_b/f")
    kept = await ArtifactArchive(tmp_path / "kept", paths=("/tmp/a/b", "/tmp/a_b")).save(box, "why")
    files = json.loads((kept.folder / "about.json").read_text())["files"]
    assert files == {"/tmp/a/b": "tmp_a_b.tar", "/tmp/a_b": "tmp_a_b-2.tar"}
    for path, data in (("/tmp/a/b", b"1\n"), ("/tmp/a_b", b"2\n")):
        with tarfile.open(kept.folder / files[path]) as tar:
            inner = tar.extractfile("f")
            assert inner is not None
            assert inner.read() == data


async def test_a_sandbox_that_did_not_fail_leaves_nothing(box: BubblewrapSandbox, tmp_path: Path) -> None:
    archive = ArtifactArchive(tmp_path / "kept")
    async with archive.on_failure(box):
        pass
    assert not archive.folder.exists()


async def test_only_so_many_so_old_and_so_large_are_kept(box: BubblewrapSandbox, tmp_path: Path) -> None:
    archive = ArtifactArchive(tmp_path / "kept", keep=2, keep_s=1000, max_bytes=100_000)
    await box.write("big", bytes(200_000))
    kept = await archive.save(box, "first")
    assert "100000 bytes" in kept.missing["/workspace"]
    assert [p.name for p in kept.folder.iterdir()] == ["about.json"]
    (archive.folder / "someone-elses").mkdir()
    for second in range(3):
        kept.folder.with_name(f"20200101T00000{second}-sb-x").mkdir()
    old = kept.folder.with_name("20990101T000000-sb-x")
    old.mkdir()
    os.utime(old, (time.time() - 2000,) * 2)
    archive.prune()
    left = sorted(p.name for p in archive.folder.iterdir())
    assert left == [kept.folder.name, "someone-elses"]


async def test_a_sparse_file_does_not_fill_the_host(provider: BubblewrapProvider, tmp_path: Path) -> None:
    box = await provider.create(SandboxSpec(limits=Limits(disk_bytes=1 << 30)))
    await box.run("truncate -s 200M sparse")
    with pytest.raises(OSError, match="over 1000000 bytes"):
        await box.pack("/workspace", tmp_path / "x.tar", max_bytes=1_000_000)
    assert "x.tar" not in " ".join(os.listdir(tmp_path))  # noqa: PTH208
    assert (await box.run(["echo", "ok"])).stdout == b"ok\n"
    assert await box.download("sparse", tmp_path / "sparse", max_bytes=1 << 30) == 200 << 20
    assert (tmp_path / "sparse").stat().st_blocks < 1000


def test_what_keeps_nothing_is_refused(tmp_path: Path) -> None:
    for wrong in ({"keep": 0}, {"keep_s": 0}, {"max_bytes": 0}, {"paths": "/workspace"}):
        with pytest.raises(InvalidSpec):
            ArtifactArchive(tmp_path, **wrong)  # type: ignore[arg-type]


async def test_a_heartbeat_keeps_a_short_lease_alive_and_its_end_ends_it(
    provider: BubblewrapProvider,
) -> None:
    box = await provider.create(SandboxSpec(ttl_s=60))
    async with kept_alive(box, 1.5):
        assert (await box.run(["sleep", "2.5"])).exit_code == 0
    with pytest.raises(ConnectionError, match="time to live"):
        await box.run(["sleep", "20"])


async def test_a_sandbox_can_be_kept_twice_in_a_second(box: BubblewrapSandbox, tmp_path: Path) -> None:
    archive = ArtifactArchive(tmp_path / "kept")
    kept = [await archive.save(box, "why") for _ in range(3)]
    assert len({each.folder for each in kept}) == 3
    assert archive.prune() == []
    assert len(list(archive.folder.iterdir())) == 3


async def test_an_error_is_not_hidden_by_one_of_keeping_its_sandbox(
    box: BubblewrapSandbox, tmp_path: Path
) -> None:
    (tmp_path / "kept").write_text("a file in the way")
    with pytest.raises(ZeroDivisionError) as told:
        async with ArtifactArchive(tmp_path / "kept").on_failure(box):
            raise ZeroDivisionError("the agent's fault")
    assert "could not be kept" in told.value.__notes__[0]


async def test_a_holder_that_is_cancelled_as_its_heartbeat_ends_is_cancelled(box: BubblewrapSandbox) -> None:
    async def hold() -> str:
        async with kept_alive(box, 60):
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "went on"

    for steps in range(8):
        task = asyncio.ensure_future(hold())
        for _ in range(steps):
            await asyncio.sleep(0)
        if task.done():
            break
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_heartbeat_that_failed_is_told_at_the_end(
    box: BubblewrapSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls, asked_twice = box.renew, [], asyncio.Event()

    async def renew(ttl_s: float) -> None:
        calls.append(ttl_s)
        if len(calls) > 1:
            asked_twice.set()
            raise SandboxError("the provider does not answer")
        await real(ttl_s)

    monkeypatch.setattr(box, "renew", renew)
    with pytest.raises(SandboxError, match="does not answer"):
        async with kept_alive(box, 0.03):
            await asked_twice.wait()
