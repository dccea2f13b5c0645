"""Artifacts: files and folders, bounded, with what was left out named; and kept on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from dressage_paddock import Task, TaskError, TaskLimits, save_artifacts
from dressage_paddock.artifacts import MAX_DEPTH, MAX_ENTRIES, Room, collect
from dressage_paddock.fake import call, say
from dressage_sandbox import SandboxSpec
from dressage_sandbox.fake import FakeSandbox, completed
from hypothesis import given
from hypothesis import strategies as st

ROOM = Room(file_bytes=10, total_bytes=100, files=5)


def fake(files: dict[str, bytes]) -> FakeSandbox:
    held = {f"/workspace/{name}": data for name, data in files.items()}
    return FakeSandbox(SandboxSpec(), lambda s, i: completed(), "s", held)


async def gather(files, *paths, room=ROOM):
    return await collect(fake(files), paths, room, "/workspace")


async def test_a_folder_is_read_with_all_that_is_below_it():
    found = await gather({"out/a": b"1", "out/b/c": b"2", "other": b"3"}, "out", "none")
    assert (found.files, found.missing, found.cut) == ({"out/a": b"1", "out/b/c": b"2"}, ("none",), ())


async def test_more_files_than_there_is_room_for_are_left_out_and_the_folder_is_named():
    found = await gather({f"out/{n:02}": b"1" for n in range(9)}, "out")
    assert (sorted(found.files), found.cut) == ([f"out/{n:02}" for n in range(5)], ("out",))


async def test_a_deep_folder_is_followed_to_a_bound():
    deep = "/".join(["d"] * (MAX_DEPTH + 2))
    found = await gather({f"{deep}/f": b"1", "d/shallow": b"2"}, "d")
    assert (found.files, found.cut) == ({"d/shallow": b"2"}, ("d",))


async def test_more_folders_than_there_is_time_for_are_left_out_and_named_and_the_rest_is_kept():
    files = {f"out/{n:05}/x": b"1" for n in range(MAX_ENTRIES + 50)}
    box = fake({**files, "first": b"2"})
    looked = []
    box.list, real = (lambda path: (looked.append(path), real(path))[1]), box.list
    found = await collect(box, ["first", "out"], Room(10, 10_000, 5), "/workspace")
    assert found.files["first"] == b"2"
    assert found.cut == ("out",)
    assert len(looked) <= MAX_ENTRIES + 1
    found = await collect(fake(files), ["out"], Room(10, 10_000, 5, seconds=0.0), "/workspace")
    assert (found.files, found.cut) == ({}, ("out",))


async def test_a_path_that_no_other_folder_could_hold_is_left_out_and_the_folder_named():
    long = "/".join(["n" * 200] * 12)
    found = await gather({f"out/{long}": b"1", "out/a": b"2"}, "out")
    assert (found.files, found.cut) == ({"out/a": b"2"}, ("out",))


async def test_a_folder_within_that_cannot_be_read_is_told(bubblewrap):
    box = await bubblewrap.create(SandboxSpec())
    await box.run("mkdir -p out/closed; echo 1 >out/closed/x; chmod 000 out/closed; echo 2 >out/open")
    found = await collect(box, ["out"], ROOM, "/workspace")
    assert (found.files, found.cut) == ({"out/open": b"2\n"}, ("out",))


@given(
    st.dictionaries(
        st.text("abc/", min_size=1, max_size=5).filter(lambda p: "//" not in p and p.strip("/") == p),
        st.binary(max_size=30),
        max_size=12,
    ),
    st.integers(1, 40),
    st.integers(1, 8),
)
async def test_no_bound_is_passed_and_whole_files_are_whole(files, total, count):
    clean = {p: d for p, d in files.items() if not any(q.startswith(p + "/") for q in files)}
    found = await gather(clean, *clean, ".", room=Room(10, total, count))
    assert sum(map(len, found.files.values())) <= total
    assert all(len(data) <= 10 for data in found.files.values())
    for path, data in found.whole.items():
        assert clean[path.removeprefix("./")] == data


async def test_links_and_pipes_of_a_real_sandbox_are_left_out_and_never_followed(bubblewrap):
    box = await bubblewrap.create(SandboxSpec())
    await box.run("mkdir out; ln -s /etc out/etc; ln -s / out/root; mkfifo out/pipe; echo hi >out/real")
    found = await collect(box, ["out", "out/pipe"], ROOM, "/workspace")
    assert (found.files, found.missing, found.cut) == ({"out/real": b"hi\n"}, ("out/pipe",), ("out",))


async def test_a_rollouts_artifacts_are_kept_on_disk_whole(fakes, tmp_path):
    script = [call("write", path="out/a", content="1"), call("write", path="/opt/b", content="2"), say("x")]
    task = Task("t", prompt="p", artifacts=("out", "/opt/b", "none"), limits=TaskLimits())
    result = await fakes(script).paddock.run(task, rollout_id="r1")
    place = save_artifacts(result.artifacts, tmp_path / "kept", result.rollout_id)
    found = {str(p.relative_to(place)): p.read_bytes() for p in place.rglob("*") if p.is_file()}
    assert found == {"work/out/a": b"1", "root/opt/b": b"2"}
    with pytest.raises(FileExistsError):
        save_artifacts(result.artifacts, tmp_path / "kept", result.rollout_id)
    assert [p.name for p in (tmp_path / "kept").iterdir()] == ["r1"]


@pytest.mark.parametrize(
    ("files", "name"),
    [({}, ""), ({}, ".."), ({}, "a/b"), ({}, "a\0"), ({"../x": b""}, "r"), ({"/a/../../x": b""}, "r")],
)
def test_nothing_is_written_outside_the_folder(tmp_path: Path, files, name):
    with pytest.raises(TaskError):
        save_artifacts(files, tmp_path / "kept", name)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []
