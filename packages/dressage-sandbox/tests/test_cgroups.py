from __future__ import annotations

from pathlib import Path

import pytest
from dressage_sandbox.cgroups import Cgroups, detect
from dressage_sandbox.errors import LimitNotEnforceable
from dressage_sandbox.protocol import Limits

LIMITS = Limits(memory_bytes=123 << 20, pids=7, cpus=1.5)


@pytest.fixture
def kernel_mkdir(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a control group file system does: a new folder has its files."""
    mkdir = Path.mkdir
    files = ["memory.max", "memory.swap.max", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
    files += ["memory.kmem.tcp.limit_in_bytes"]
    files += ["pids.max", "cpu.max", "cpu.cfs_period_us", "cpu.cfs_quota_us", "cgroup.procs", "tasks"]

    def with_files(self: Path, *args: object, **kwargs: object) -> None:
        mkdir(self, *args, **kwargs)  # type: ignore[arg-type]
        if self.name.startswith("dressage"):
            for file in files:
                (self / file).write_text("")

    monkeypatch.setattr(Path, "mkdir", with_files)


def test_v2_limits_are_written_to_one_folder(tmp_path: Path, kernel_mkdir: None) -> None:
    groups = Cgroups(2, dict.fromkeys(("memory", "pids", "cpu"), tmp_path))
    (folder,) = groups.make("dressage-x", LIMITS)
    texts = {
        name: (folder / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max", "cpu.max")
    }
    assert texts == {
        "memory.max": str(123 << 20), "memory.swap.max": "0", "pids.max": "7", "cpu.max": "150000 100000",
    }  # fmt: skip
    groups.enter([folder], 42)
    assert (folder / "cgroup.procs").read_text() == "42"


def test_v1_limits_are_written_to_a_folder_each(tmp_path: Path, kernel_mkdir: None) -> None:
    parents = {name: tmp_path / name for name in ("memory", "pids", "cpu")}
    for parent in parents.values():
        parent.mkdir()
    folders = Cgroups(1, parents).make("dressage-x", LIMITS)
    assert len(folders) == 3
    assert (parents["memory"] / "dressage-x/memory.limit_in_bytes").read_text() == str(123 << 20)
    of_sockets = parents["memory"] / "dressage-x/memory.kmem.tcp.limit_in_bytes"
    assert of_sockets.read_text() == str((123 << 20) // 4)
    assert (parents["pids"] / "dressage-x/pids.max").read_text() == "7"
    assert (parents["cpu"] / "dressage-x/cpu.cfs_quota_us").read_text() == "150000"


def test_a_group_that_cannot_be_made_whole_is_not_left(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    groups = Cgroups(1, {"memory": tmp_path / "memory", "pids": tmp_path / "missing"})
    with pytest.raises(FileNotFoundError):
        groups.make("dressage-x", Limits())
    assert list((tmp_path / "memory").iterdir()) == []


def test_a_cpu_limit_without_a_cpu_group_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(LimitNotEnforceable, match=r"limits\.cpus"):
        Cgroups(0, {}).make("dressage-x", LIMITS)
    assert Cgroups(0, {}).make("dressage-x", Limits()) == ()


def test_detection_of_v2_needs_delegated_controllers(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    own = root / "user.slice/app.scope"
    own.mkdir(parents=True)
    mountinfo, cgroup = tmp_path / "mountinfo", tmp_path / "own"
    mountinfo.write_text(f"30 23 0:26 / {root} rw,nosuid - cgroup2 cgroup2 rw\n")
    cgroup.write_text("0::/user.slice/app.scope\n")
    assert detect(mountinfo, cgroup) == Cgroups(1, {})
    assert detect(tmp_path / "absent", cgroup) == Cgroups(0, {})


def test_a_v1_mount_below_the_hierarchys_root_is_found(tmp_path: Path) -> None:
    from dressage_sandbox.cgroups import _v1_parents

    (tmp_path / "memory/task").mkdir(parents=True)
    mounts = f"40 30 0:30 /docker/abc {tmp_path}/memory rw - cgroup cgroup rw,memory\n"
    assert _v1_parents(mounts, "4:memory:/docker/abc/task\n") == {"memory": tmp_path / "memory/task"}
    assert _v1_parents(mounts, "4:memory:/docker/abc\n") == {"memory": tmp_path / "memory"}
    assert _v1_parents(mounts, "3:pids:/\n") == {}
