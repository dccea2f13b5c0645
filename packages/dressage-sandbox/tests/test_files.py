from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from dressage_sandbox import BubblewrapProvider, BubblewrapSandbox, Limits, SandboxFileError, SandboxSpec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

NAMES = st.binary(min_size=1, max_size=60).filter(
    lambda b: b"/" not in b and b"\0" not in b and b not in (b".", b"..")
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.dictionaries(NAMES, st.binary(max_size=500), max_size=5),
    offset=st.integers(0, 600),
    size=st.integers(0, 600),
)
def test_any_name_and_content_is_read_back_and_listed(
    files: dict[bytes, bytes], offset: int, size: int
) -> None:
    async def check() -> None:
        provider = BubblewrapProvider()
        box = await provider.create(SandboxSpec())
        try:
            for name, data in files.items():
                await box.write("d/" + name.decode("utf-8", "surrogateescape"), data)
            listed = {e.name: e.size for e in await box.list("d")} if files else {}
            assert listed == {n.decode("utf-8", "surrogateescape"): len(d) for n, d in files.items()}
            for name, data in files.items():
                path = "d/" + name.decode("utf-8", "surrogateescape")
                assert await box.read(path, offset=offset, max_bytes=size) == data[offset : offset + size]
        finally:
            await provider.close()

    asyncio.run(check())


async def test_sixteen_megabytes_go_both_ways_at_once_with_commands(box: BubblewrapSandbox) -> None:
    data = bytes(range(256)) * (16 << 12)
    writes = [box.write(f"f{i}", data) for i in range(2)]
    results = await asyncio.gather(*writes, box.run(["echo", "ok"]))
    assert results[-1].stdout == b"ok\n"
    assert await box.read("f1", max_bytes=32 << 20) == data


@pytest.mark.alone
async def test_the_head_of_a_huge_sparse_file_costs_ten_bytes(provider: BubblewrapProvider) -> None:
    box = await provider.create(SandboxSpec(limits=Limits(disk_bytes=4 << 30)))
    await box.run(["truncate", "-s", "3G", "sparse"])
    started = time.monotonic()
    assert await box.read("sparse", max_bytes=10) == bytes(10)
    assert await box.read("sparse", offset=(3 << 30) - 4, max_bytes=10) == bytes(4)
    assert time.monotonic() - started < 0.5


async def test_a_write_replaces_links_and_never_follows_them(box: BubblewrapSandbox) -> None:
    await box.run("echo kept > target; ln -s target link; ln target hard")
    await box.write("link", b"new")
    await box.write("hard", b"new")
    assert await box.read("target") == b"kept\n"
    kinds = {entry.name: entry.kind for entry in await box.list(".")}
    assert kinds == {"target": "file", "link": "file", "hard": "file"}


async def test_a_write_that_fails_or_is_cancelled_leaves_no_part(box: BubblewrapSandbox) -> None:
    await box.write("file", b"old")
    task = asyncio.ensure_future(box.write("file", bytes(100 << 20)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [entry.name for entry in await box.list(".")] == ["file"]
    assert await box.read("file") == b"old"


async def test_modes_are_kept(box: BubblewrapSandbox) -> None:
    await box.write("script", b"#!/bin/sh\necho ran\n", mode=0o755)
    assert (await box.run(["./script"])).stdout == b"ran\n"


@pytest.mark.parametrize("path", ["folder/", "/proc/self/fd", "/etc/passwd", "x/y/z"])
async def test_a_write_that_cannot_be_is_never_silent(box: BubblewrapSandbox, path: str) -> None:
    await box.write("x/y", b"a file where a folder is needed")
    with pytest.raises(SandboxFileError):
        await box.write(path, b"1")


async def test_a_folder_of_too_many_entries_is_refused_and_many_are_listed(box: BubblewrapSandbox) -> None:
    make = "import os\nos.mkdir('d')\nfor i in range({}): os.close(os.open('d/%06d' % i, os.O_CREAT))"
    await box.run(["python3", "-c", make.format(3000)])
    entries = await box.list("d")
    assert [entry.name for entry in entries] == [f"{i:06d}" for i in range(3000)]


async def test_any_number_of_downloads_and_uploads_of_one_file_at_once_each_see_a_whole_one(
    box: BubblewrapSandbox, tmp_path: Path
) -> None:
    whole = [bytes([value]) * 300_000 for value in (1, 2)]
    for number, data in enumerate(whole):
        (tmp_path / f"source{number}").write_bytes(data)
    await box.write("same", whole[0])
    uploads = [box.upload(tmp_path / f"source{number % 2}", "same") for number in range(20)]
    downloads = [box.download("same", tmp_path / f"target{number}") for number in range(80)]
    sizes = await asyncio.gather(*uploads, *downloads)
    assert set(sizes) == {300_000}
    for number in range(80):
        assert (tmp_path / f"target{number}").read_bytes() in whole
    assert [entry.name for entry in await box.list(".")] == ["same"]


async def test_a_work_folder_that_was_closed_by_a_command_keeps_no_later_one_from_running(
    box: BubblewrapSandbox,
) -> None:
    assert (await box.run(["chmod", "000", "."])).exit_code == 0
    assert (await box.run(["echo", "ok"])).stdout == b"ok\n"
    assert (await box.run("stat -c %a .")).stdout == b"700\n"
    with pytest.raises(SandboxFileError):
        await box.run(["true"], cwd="/none/such")


async def test_a_write_that_fails_names_the_path_that_was_asked_for(box: BubblewrapSandbox) -> None:
    await box.write("file", b"")
    for path in ("/etc/new", "/proc/1/new", "file/new"):
        told = set()
        for _ in range(2):
            with pytest.raises(SandboxFileError) as caught:
                await box.write(path, b"x")
            told.add((str(caught.value), caught.value.filename))
        ((_, filename),) = told
        assert filename in (path, path.rpartition("/")[0])


async def test_no_command_holds_a_file_against_its_reading(box: BubblewrapSandbox, tmp_path: Path) -> None:
    await box.write("held", b"1")
    hold = "import fcntl, time; file = open('held', 'r+b'); fcntl.fcntl(file, 1024, 1); time.sleep(60)"
    service = await box.start(["python3", "-c", hold])  # a lease, as file servers take them
    assert b"PermissionError" in (await service.wait(20)).stderr
    assert await box.read("held") == b"1"
    assert await box.pack("/workspace", tmp_path / "tree.tar") > 0
