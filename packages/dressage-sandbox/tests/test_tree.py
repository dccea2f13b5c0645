# Names are bytes here, which pathlib does not take.
# ruff: noqa: PTH101, PTH102, PTH112, PTH114, PTH115, PTH116, PTH118, PTH123, PTH208, PTH211
from __future__ import annotations

import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest
from dressage_sandbox.inside.tree import read_archive, write_archive
from hypothesis import given, settings
from hypothesis import strategies as st

NAMES = st.binary(min_size=1, max_size=120).filter(
    lambda n: b"/" not in n and b"\0" not in n and n.strip(b".")
)
LEAVES = st.tuples(st.sampled_from([0o644, 0o755, 0o600]), st.binary(max_size=2000)) | st.binary(
    min_size=1, max_size=150
).filter(lambda target: b"\0" not in target)
TREES = st.recursive(LEAVES, lambda t: st.dictionaries(NAMES, t, max_size=4), max_leaves=12)


def make(place: bytes, tree: object) -> None:
    if isinstance(tree, dict):
        os.mkdir(place)
        for name, below in tree.items():
            make(place + b"/" + name, below)
    elif isinstance(tree, bytes):
        os.symlink(tree, place)
    else:
        mode, data = tree  # type: ignore[misc]
        with open(place, "wb") as file:
            file.write(data)
        os.chmod(place, mode)


def look(place: bytes) -> object:
    if os.path.islink(place):
        return os.readlink(place)
    if os.path.isdir(place):
        return {name: look(place + b"/" + name) for name in sorted(os.listdir(place))}
    with open(place, "rb") as file:
        return os.stat(place).st_mode & 0o777, os.stat(place).st_mtime_ns // 10**9, file.read()


def packed(folder: bytes, target: Path) -> None:
    with target.open("wb") as file:
        write_archive(file.fileno(), folder)


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(NAMES, TREES, max_size=4))
def test_a_folder_comes_back_as_it_was_and_other_tars_read_it_too(tree: dict[bytes, object]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        source, again, tar = (
            os.fsencode(scratch) + b"/source",
            os.fsencode(scratch) + b"/again",
            Path(scratch, "tar"),
        )
        make(source, tree)
        packed(source, tar)
        os.mkdir(again)
        with tar.open("rb") as file:
            read_archive(file.fileno(), again)
        assert look(again) == look(source)
        with tarfile.open(tar, errors="surrogateescape") as read:
            names = {os.fsencode(member.name) for member in read.getmembers()}
        found = [os.path.join(place, n) for place, dirs, files in os.walk(source) for n in (*dirs, *files)]
        assert names == {path[len(source) + 1 :] for path in found}


def test_a_file_that_shrinks_or_vanishes_meanwhile_does_not_break_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, again, tar = tmp_path / "source", tmp_path / "again", tmp_path / "tar"
    for folder in (source, again):
        folder.mkdir()
    for name in ("a", "b", "c"):
        (source / name).write_bytes(name.encode() * 5000)
    real = os.lstat

    def lstat(path: bytes) -> os.stat_result:
        found = real(path)
        if path.endswith(b"/b"):
            (source / "b").unlink()
        return found

    monkeypatch.setattr("dressage_sandbox.inside.tree.posix.lstat", lstat)
    packed(os.fsencode(source), tar)
    monkeypatch.undo()
    with tar.open("rb") as file:
        read_archive(file.fileno(), os.fsencode(again))
    assert sorted(path.name for path in again.iterdir()) == ["a", "c"]


@pytest.mark.parametrize("cut", [1, 511, 512, 700, 1023, 1536])
def test_an_archive_that_is_cut_off_is_refused(tmp_path: Path, cut: int) -> None:
    source, again, tar = tmp_path / "source", tmp_path / "again", tmp_path / "tar"
    for folder in (source, again):
        folder.mkdir()
    (source / "file").write_bytes(b"x" * 1000)
    packed(os.fsencode(source), tar)
    os.truncate(tar, cut)
    with tar.open("rb") as file, pytest.raises(OSError, match="cut off"):
        read_archive(file.fileno(), os.fsencode(again))


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        packed(os.fsencode(tmp_path / "missing"), tmp_path / "tar")


def deeper(fd: int, levels: int, name: str) -> int:
    """The descriptor of a folder so many levels below ``fd``, which is closed."""
    for _ in range(levels):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    return fd


@pytest.mark.parametrize("length", [60, 255])
def test_a_tree_deeper_than_any_path_may_be_long_comes_back_whole(tmp_path: Path, length: int) -> None:
    source, again, tar = tmp_path / "source", tmp_path / "again", tmp_path / "tar"
    for folder in (source, again):
        folder.mkdir()
    levels = 9000 // (length + 1)
    fd = deeper(os.open(source, os.O_RDONLY), levels, "d" * length)
    with open("file", "wb", opener=lambda name, flags: os.open(name, flags, dir_fd=fd)) as file:
        file.write(b"at the bottom")
    os.symlink("file", "link", dir_fd=fd)
    os.chmod("file", 0o640, dir_fd=fd)
    os.close(fd)
    before = os.open(".", os.O_RDONLY)
    try:
        packed(os.fsencode(source), tar)
        with tar.open("rb") as file:
            read_archive(file.fileno(), os.fsencode(again))
    finally:
        os.fchdir(before)
        os.close(before)
    fd = os.open(again, os.O_RDONLY)
    for _ in range(levels):
        below = os.open("d" * length, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    assert sorted(os.listdir(fd)) == ["file", "link"]
    assert os.readlink("link", dir_fd=fd) == "file"
    assert os.stat("file", dir_fd=fd).st_mode & 0o777 == 0o640
    found = os.open("file", os.O_RDONLY, dir_fd=fd)
    assert os.read(found, 100) == b"at the bottom"
    os.close(found)
    os.close(fd)
    subprocess.run(["rm", "-rf", source, again], check=True)  # shutil's would recurse as deep
