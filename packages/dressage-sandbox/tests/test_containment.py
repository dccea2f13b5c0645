"""Faults that existing systems were seen to have, each tried from inside."""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import sys
from pathlib import Path

import pytest
from dressage_sandbox import (
    BubblewrapProvider,
    BubblewrapSandbox,
    InvalidSpec,
    Limits,
    Mount,
    SandboxFileError,
    SandboxSpec,
    seccomp,
)


async def shell(box: BubblewrapSandbox, line: str) -> str:
    result = await box.run(line)
    return (result.stdout + result.stderr).decode()


async def test_nothing_of_the_hosts_environment_is_inside(
    provider: BubblewrapProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED_SECRET", "hunter2-environment")
    box = await provider.create(SandboxSpec(env={"OWN": "yes"}))
    everything = await shell(box, "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null")
    assert "hunter2" not in everything
    names = {line.split("=")[0] for line in (await shell(box, "env")).splitlines()}
    assert names == {"PATH", "HOME", "USER", "LANG", "TMPDIR", "PWD", "OWN"}


async def test_a_path_of_the_image_is_kept_by_a_shell_line(provider: BubblewrapProvider) -> None:
    box = await provider.create(SandboxSpec(env={"PATH": "/workspace/bin:/usr/bin:/bin"}))
    await box.write("bin/tool", b"#!/bin/sh\necho mine\n", mode=0o755)
    assert await shell(box, "echo $PATH; tool") == "/workspace/bin:/usr/bin:/bin\nmine\n"
    assert (await box.run(["tool"])).stdout == b"mine\n"


async def test_host_processes_are_neither_seen_nor_signalled(box: BubblewrapSandbox) -> None:
    assert (await box.run(["kill", "-0", str(os.getpid())])).exit_code != 0
    pids = (await shell(box, "ls /proc | grep -E '^[0-9]+$'")).split()
    assert len(pids) < 8
    assert (await box.run(["kill", "-9", "-1"])).exit_code in (0, 137)
    assert (await box.run(["echo", "still here"])).stdout == b"still here\n"


@pytest.mark.parametrize(
    "change",
    [
        "resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))",
        "resource.prlimit(1, resource.RLIMIT_AS, (0, 0))",
        "resource.prlimit(1, resource.RLIMIT_CPU, (0, 0))",
        "os.setpriority(os.PRIO_PROCESS, 1, 19)",
        "os.setpriority(os.PRIO_PGRP, 1, 19)",
        "os.setpriority(os.PRIO_USER, 0, 19)",
        "os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))",
        "os.sched_setaffinity(1, {0})",
    ],
)
async def test_limits_and_priority_of_the_agent_are_not_changed_from_inside(
    box: BubblewrapSandbox, change: str
) -> None:
    told = await box.run(["python3", "-c", f"import os, resource\n{change}"])
    assert told.exit_code == 1
    assert b"PermissionError" in told.stderr
    assert (await box.run(["echo", "ok"])).stdout == b"ok\n"
    await box.write("file", b"x")


async def test_a_program_changes_its_own_limits_and_priority(box: BubblewrapSandbox) -> None:
    line = (
        "import os, resource; resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE, (9, 9)); os.nice(3); "
        "os.sched_setaffinity(os.getpid(), os.sched_getaffinity(0)); print(resource.prlimit(1, 7)[0] > 9)"
    )
    assert (await box.run(["python3", "-c", line])).stdout == b"True\n"


async def test_the_agent_is_neither_killed_stopped_nor_read_from_inside(box: BubblewrapSandbox) -> None:
    for name in ("KILL", "STOP", "INT", "TERM", "HUP", "USR1", "QUIT"):
        await box.run(["kill", f"-{name}", "1"])
    assert "Permission denied" in await shell(
        box, "cat /proc/1/environ; head -c 1 /proc/1/mem; ls /proc/1/fd"
    )
    assert "Permission denied" in await shell(box, ": > /proc/1/mem")
    assert (await box.run(["echo", "ok"])).stdout == b"ok\n"


async def test_commands_get_no_descriptor_but_their_streams(box: BubblewrapSandbox) -> None:
    listed = await shell(box, "ls -l /proc/self/fd | grep -v /proc/")
    assert listed.count("->") == 3, listed
    result = await box.run(["cat"], stdin=b"x" * 100)
    assert result.stdout == b"x" * 100


async def test_host_files_are_not_there(box: BubblewrapSandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2")
    for path in (
        "/etc/shadow",
        "/root",
        "/home",
        str(tmp_path),
        __file__,
        sys.prefix,
        "/sys",
    ):
        assert (await box.run(["ls", path])).exit_code != 0, path
    users = await shell(box, "cut -d: -f1 /etc/passwd")
    assert users.split() == ["root", "agent", "nobody"]


async def test_it_is_never_root_and_has_no_capability(box: BubblewrapSandbox) -> None:
    assert await shell(box, "id -u; id -g; id -G") == "1000\n1000\n1000\n" or os.geteuid() != 0
    status = await shell(box, "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status")
    fields = dict(line.split(":\t") for line in status.splitlines())
    assert all(int(value, 16) == 0 for name, value in fields.items() if name.startswith("Cap")), status
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2" or seccomp.program() is None
    assert _uid_of(box.pid) != 0


def _uid_of(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[1])
    raise AssertionError("no Uid")


@pytest.mark.parametrize(
    "name", ["kernel/core_pattern", "kernel/hostname", "kernel/panic", "vm/overcommit_memory"]
)
async def test_kernel_settings_cannot_be_written(box: BubblewrapSandbox, name: str) -> None:
    before = Path("/proc/sys", name).read_text()  # noqa: ASYNC240
    text = await shell(
        box, f"cat /proc/sys/{name} > /proc/sys/{name}; test -w /proc/sys/{name} && echo WRITABLE"
    )
    assert "WRITABLE" not in text
    assert "denied" in text or "Read-only" in text or "nonexistent" in text, text
    assert Path("/proc/sys", name).read_text() == before  # noqa: ASYNC240


async def test_host_loopback_and_every_other_address_are_unreachable(box: BubblewrapSandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("0.0.0.0", 0)) as wide:
        ports = [server.getsockname()[1], wide.getsockname()[1]]
        script = (
            "import socket, sys\n"
            "for host in ('127.0.0.1', '::1', '169.254.169.254', '10.0.0.1', '8.8.8.8'):\n"
            f"    for port in {ports} + [53, 80]:\n"
            "        try:\n"
            "            socket.create_connection((host, port), 0.3)\n"
            "            print('REACHED', host, port)\n"
            "        except OSError:\n"
            "            pass\n"
            "print(sorted(name for _, name in socket.if_nameindex()))\n"
        )
        assert (await box.run(["python3", "-c", script])).stdout == b"['lo']\n"
        abstract = socket.socket(socket.AF_UNIX)
        abstract.bind(f"\0dressage-test-{os.getpid()}")
        abstract.listen()
        script = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0dressage-test-{os.getpid()}')"
        assert (await box.run(["python3", "-c", script])).exit_code == 1
        abstract.close()


CALLS = {
    "ptrace": 101, "mount": 165, "umount2": 166, "unshare": 272, "setns": 308, "keyctl": 250, "add_key": 248,
    "bpf": 321, "userfaultfd": 323, "perf_event_open": 298, "io_uring_setup": 425, "process_vm_readv": 310,
    "pivot_root": 155, "chroot": 161, "open_by_handle_at": 304, "kexec_load": 246, "init_module": 175,
    "pidfd_getfd": 438, "fsopen": 430, "move_mount": 429, "open_tree": 428, "syslog": 103, "acct": 163,
}  # fmt: skip


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86_64")
async def test_escape_prone_system_calls_are_refused(box: BubblewrapSandbox) -> None:
    script = f"""
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
for name, number in {CALLS!r}.items():
    ctypes.set_errno(0)
    result = libc.syscall(number, 0, 0, 0, 0, 0, 0)
    assert result == -1 and ctypes.get_errno() == errno.EPERM, (name, result, ctypes.get_errno())
for flag in (0x10000000, 0x20000000, 0x40000000, 0x00020000):
    assert libc.syscall(56, flag | 17, 0, 0, 0, 0) == -1 and ctypes.get_errno() == errno.EPERM, hex(flag)
assert libc.syscall(435, 0, 0) == -1 and ctypes.get_errno() == errno.ENOSYS
assert libc.syscall(0x40000000 | 39) == -1 and ctypes.get_errno() == errno.EPERM  # the x32 numbers
assert libc.ioctl(0, 0x5412, b"x") == -1 and ctypes.get_errno() == errno.EPERM
for family in (40, 17, 38, 44):  # vsock, packet, alg, xdp
    try:
        socket.socket(family, socket.SOCK_STREAM)
        raise AssertionError(family)
    except OSError as error:
        assert error.errno in (errno.EAFNOSUPPORT, errno.EPERM), (family, error)
socket.socket(socket.AF_INET), socket.socket(socket.AF_UNIX)
import threading
thread = threading.Thread(target=print, args=("threads work",)); thread.start(); thread.join()
"""
    result = await box.run(["python3", "-c", script])
    assert (result.stdout, result.stderr) == (b"threads work\n", b"")


async def test_nested_user_namespaces_are_refused(box: BubblewrapSandbox) -> None:
    assert (await box.run(["unshare", "-U", "true"])).exit_code != 0
    assert (await box.run(["unshare", "-Ur", "id"])).exit_code != 0


async def test_only_the_private_folders_can_be_written(box: BubblewrapSandbox) -> None:
    text = await shell(box, "find / -xdev -path /proc -prune -o -writable -type d -print 2>/dev/null; true")
    for path in (
        "/usr/x",
        "/etc/x",
        "/x",
        "/run/x",
        "/dev/x",
        "/var/x",
        "/etc/passwd",
        "/run/dressage/agent.pyc",
    ):
        with pytest.raises(SandboxFileError):
            await box.write(path, b"1")
    for path in ("/tmp/x", "/workspace/x", "/dev/shm/x"):
        await box.write(path, b"1")
    assert "/usr" not in text


@pytest.mark.parametrize("parents", [0o755, 0o700])
async def test_mounts_are_read_only_and_show_nothing_beside(
    provider: BubblewrapProvider, tmp_path: Path, parents: int
) -> None:
    folder, file = tmp_path / "folder", tmp_path / "single"
    folder.mkdir()
    (folder / "data").write_bytes(b"shared")
    file.write_bytes(b"one")
    (tmp_path / "beside").write_bytes(b"hunter2")
    for path in (folder, folder / "data", file):
        path.chmod(0o755)
    os.chmod(tmp_path, parents)  # noqa: PTH101
    box = await provider.create(
        SandboxSpec(mounts=(Mount(folder, "/data"), Mount(file, "/workspace/in/single")))
    )
    assert await box.read("/data/data") == b"shared"
    assert await box.read("/workspace/in/single") == b"one"
    with pytest.raises(SandboxFileError):
        await box.write("/data/new", b"1")
    assert (await box.run("echo x > /data/data")).exit_code != 0
    assert "hunter2" not in await shell(box, "cat /data/../beside /data/*; ls /data/..")
    assert (folder / "data").read_bytes() == b"shared"


async def test_a_mount_that_only_root_can_read_is_refused_by_name(
    provider: BubblewrapProvider, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    if os.geteuid() != 0:
        pytest.skip("others own their files inside")
    with pytest.raises(InvalidSpec, match="chmod o"):
        await provider.create(SandboxSpec(mounts=(Mount(closed, "/x"),)))
    assert provider.live() == []


@pytest.mark.parametrize("use_cgroups", [True, False], ids=["cgroups", "rlimits"])
async def test_a_memory_bomb_ends_its_command_and_not_the_sandbox(
    runtime_dir: Path, use_cgroups: bool
) -> None:
    provider = BubblewrapProvider(runtime_dir=runtime_dir, reaper=False, use_cgroups=use_cgroups)
    box = await provider.create(SandboxSpec(limits=Limits(memory_bytes=96 << 20)))
    result = await box.run(["python3", "-c", "x = bytearray(300 << 20); print(len(x))"])
    by_cgroup = use_cgroups and (await provider.probe()).memory.startswith("cgroup")
    assert result.exit_code == (137 if by_cgroup else 1), result
    assert (await box.run(["echo", "ok"])).stdout == b"ok\n"
    await provider.close()


async def test_memory_pressure_takes_commands_before_the_agent(box: BubblewrapSandbox) -> None:
    assert (await box.run(["cat", "/proc/self/oom_score_adj"])).stdout == b"500\n"
    own = Path("/proc/self/oom_score_adj").read_bytes()  # noqa: ASYNC240
    assert (await box.run(["cat", "/proc/1/oom_score_adj"])).stdout == own


async def test_many_small_processes_that_fill_memory_do_not_take_the_agent(
    provider: BubblewrapProvider,
) -> None:
    box = await provider.create(SandboxSpec(limits=Limits(memory_bytes=64 << 20)))
    await box.run(
        "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do "
        "python3 -c 'import time; x = bytearray(7 << 20); time.sleep(2)' & done; wait",
        timeout_s=4,
    )
    assert (await box.run(["echo", "ok"])).stdout == b"ok\n"


async def test_disk_and_file_descriptors_are_bounded(provider: BubblewrapProvider) -> None:
    box = await provider.create(SandboxSpec(limits=Limits(disk_bytes=8 << 20, open_files=32)))
    for folder in ("/tmp", "/workspace", "/dev/shm"):
        result = await box.run(f"for i in 1 2 3; do head -c 6000000 /dev/zero > {folder}/f$i || exit 9; done")
        assert result.exit_code == 9, folder
        await box.run(f"rm {folder}/*")
    with pytest.raises(SandboxFileError, match="No space left"):
        await box.write("big", bytes(9 << 20))
    assert [entry.name for entry in await box.list(".")] == []
    script = "import os\ntry:\n    [os.open('/', 0) for _ in range(100)]\nexcept OSError as e: print(e.errno)"
    assert (await box.run(["python3", "-c", script])).stdout == b"24\n"
    assert (await box.run("ulimit -Hn")).stdout == b"32\n"


async def test_a_cpu_quota_is_held_or_refused(provider: BubblewrapProvider) -> None:
    spec = SandboxSpec(limits=Limits(cpus=0.2))
    if (await provider.probe()).cpu == "none":
        with pytest.raises(RuntimeError, match=r"limits\.cpus"):
            await provider.create(spec)
        return
    box = await provider.create(spec)
    spin = (
        "import time\nt = time.perf_counter()\nwhile time.process_time() < 0.15: pass\n"
        "print(time.perf_counter() - t)"
    )
    assert float((await box.run(["python3", "-c", spin])).stdout) > 0.4


@pytest.mark.skipif(not Path("/usr/bin/node").exists(), reason="no node in /usr")
@pytest.mark.parametrize("use_cgroups", [True, False], ids=["cgroups", "rlimits"])
async def test_a_program_that_reserves_much_address_space_runs(runtime_dir: Path, use_cgroups: bool) -> None:
    provider = BubblewrapProvider(runtime_dir=runtime_dir, reaper=False, use_cgroups=use_cgroups)
    box = await provider.create(SandboxSpec())
    result = await box.run(["node", "-e", "console.log([1, 2].map(x => x * 21).join())"])
    await provider.close()
    assert (result.exit_code, result.stdout) == (0, b"21,42\n"), result


async def test_a_terminal_cannot_be_reached(box: BubblewrapSandbox) -> None:
    assert (await box.run("echo x > /dev/tty")).exit_code != 0


async def test_a_slow_command_blocks_no_other_call(box: BubblewrapSandbox) -> None:
    slow = [
        asyncio.ensure_future(box.run("yes | head -c 400M >/dev/null; cat /dev/zero | head -c 200M"))
        for _ in "ab"
    ]
    await asyncio.sleep(0)
    assert (await box.run(["echo", "quick"])).stdout == b"quick\n"
    await box.list("/")
    assert not any(each.done() for each in slow)
    await asyncio.gather(*slow)


async def test_a_prompt_of_more_than_128_kib_is_refused_with_the_way_to_pass_it(
    box: BubblewrapSandbox,
) -> None:
    prompt = "x" * (200 << 10)
    for command in (["echo", prompt], f"echo {prompt}"):
        with pytest.raises(ValueError, match="stdin, or write"):
            await box.run(command)
    with pytest.raises(ValueError, match="env 'PROMPT'"):
        await box.run(["true"], env={"PROMPT": prompt})
    with pytest.raises(ValueError, match="exec takes"):
        await box.run(["echo", *["y" * 100_000] * 40])
    assert (await box.run(["wc", "-c"], stdin=prompt.encode())).stdout == b"204800\n"
    await box.write("prompt", prompt.encode())
    assert (await box.run("wc -c < prompt")).stdout == b"204800\n"
