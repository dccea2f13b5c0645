from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dressage_sandbox import BubblewrapProvider, InvalidSpec, Limits, SandboxFileError, SandboxSpec
from dressage_sandbox.bwrap import find_bubblewrap
from dressage_sandbox.idmap import can_map


@pytest.fixture(scope="module")
def image(make_image: Callable[[Path], None]) -> Iterator[Path]:
    """A root with a few programs and their libraries, without Python."""
    root = Path(tempfile.mkdtemp(prefix="dressage-test-", dir="/tmp"))
    make_image(root)
    yield root
    shutil.rmtree(root)


@pytest.mark.parametrize("way", ["overlay", "copy"])
async def test_a_root_is_the_slash_inside_with_a_private_work_folder(
    provider: BubblewrapProvider, image: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "copy":
        monkeypatch.setattr("dressage_sandbox.roots.can_map", lambda bubblewrap, folder: False)
    elif os.geteuid() == 0 and not can_map(find_bubblewrap(), image):
        pytest.skip("no ID-mapped mounts on this file system")
    spec = SandboxSpec(root=image, workdir="/testbed", env={"PATH": "/opt/tool:/bin"})
    one, two = await provider.create(spec), await provider.create(spec)
    listed = await one.run("ls / && cat /etc/passwd && id -u && ./tool && cat link && echo $PATH")
    assert listed.stdout.split(b"\n")[-7:] == [
        b"tmp", b"var", b"image:x:0:0::/:/bin/sh", b"1000", b"tool", b"of the image", b"/opt/tool:/bin", b"",
    ][-7:]  # fmt: skip
    assert (await one.run("echo mine > sub/file && rm link && mkdir new && touch /tmp/x")).exit_code == 0
    assert await two.read("link") == b"of the image\n"
    assert (image / "testbed/sub/file").read_bytes() == b"of the image\n"
    assert provider._roots._archives == {} or way == "copy"
    assert (await one.run("ls -ld . sub | cat")).stdout.count(b"1000") >= 2
    assert (await one.run("rm -rf sub && mkdir sub && touch sub/new && ls sub")).stdout == b"new\n"
    assert (image / "testbed/sub/file").exists()
    assert (await one.run("touch /opt/tool/x")).exit_code != 0
    assert (await one.run(["python3", "-c", ""])).exit_code == 127
    with pytest.raises(SandboxFileError):
        await one.write("/bin/sh", b"")


async def test_the_base_interpreter_serves_beside_an_image_too(runtime_dir: Path, image: Path) -> None:
    provider = BubblewrapProvider(runtime_dir=runtime_dir, reaper=False, interpreter="base")
    box = await provider.create(SandboxSpec(root=image, workdir="/testbed"))
    assert await box.read("link") == b"of the image\n"
    assert (await box.run("cat link")).stdout == b"of the image\n"
    await provider.close()
    assert not runtime_dir.exists()  # noqa: ASYNC240


async def test_a_root_without_the_work_folder_gets_an_empty_one(
    provider: BubblewrapProvider, image: Path
) -> None:
    box = await provider.create(SandboxSpec(root=image))
    await box.write("x", b"1")
    assert (await box.run("ls")).stdout == b"x\n"
    snapshot = await box.snapshot()
    fork = await provider.create(SandboxSpec(root=image, snapshot=snapshot.id))
    assert await fork.read("x") == b"1"


@pytest.mark.parametrize(
    "workdir",
    ["/elsewhere", "/elsewhere/x", "/opt/none", "/etc/passwd", "/bin", "/proc/x"],
)
async def test_a_work_folder_that_cannot_lie_in_the_image_is_refused(
    provider: BubblewrapProvider, image: Path, workdir: str
) -> None:
    with pytest.raises(InvalidSpec, match="workdir"):
        await provider.create(SandboxSpec(root=image, workdir=workdir))


async def test_roots_that_are_none_are_refused_by_name(provider: BubblewrapProvider, tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InvalidSpec, match="root="):
            await provider.create(SandboxSpec(root=root))


async def test_an_overlay_is_of_bounded_size(provider: BubblewrapProvider, image: Path) -> None:
    spec = SandboxSpec(root=image, workdir="/testbed", limits=Limits(disk_bytes=4 << 20))
    box = await provider.create(spec)
    full = await box.run("head -c 3M /dev/zero >one && head -c 3M /dev/zero >two")
    assert (full.exit_code, b"space" in full.stderr) == (1, True)
    await box.run("rm one two")
    assert (await box.run("head -c 3M /dev/zero >one && echo ok")).stdout == b"ok\n"


async def test_a_work_folder_larger_than_the_disk_is_refused_where_it_is_copied(
    provider: BubblewrapProvider, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dressage_sandbox.roots.can_map", lambda bubblewrap, folder: False)
    if os.geteuid() != 0:
        pytest.skip("the owner's own overlay copies nothing")
    big = image / "testbed/big"
    big.write_bytes(bytes(2 << 20))
    try:
        spec = SandboxSpec(root=image, workdir="/testbed", limits=Limits(disk_bytes=1 << 20))
        with pytest.raises(InvalidSpec, match="disk_bytes"):
            await provider.create(spec)
    finally:
        big.unlink()
