"""Files of the host and of neighbours: from inside, and through the file API that the host itself calls."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ..errors import SandboxError, SandboxFileError
from ._attempt import Attempt, inside
from ._scene import Scene

__all__ = ["ATTEMPTS"]

_KIND = "files"

_READ = """
import os
places = ['/etc/shadow', '/root', '/home', '/var/log', '/etc/hostname', '/etc/ssh', T['file'], T['runtime']]
for path in places + T['paths']:
    if path.startswith(('/usr', '/bin', '/lib')) or os.path.abspath(path) in ('/', '/tmp'): continue  # own
    try:
        names = os.listdir(path) if os.path.isdir(path) else [open(path, 'rb').read(64)]
        escaped(f'{path}: {names[:3]}')
    except OSError: pass
"""

_SEARCH = """
import os, stat
for place, folders, names in os.walk('/'):
    if place.startswith(('/proc', '/usr')): folders.clear(); continue
    for name in names:
        path = os.path.join(place, name)
        try:
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode) and status.st_size < 1 << 16:
                if T['secret'].encode() in open(path, 'rb').read(): escaped(path)
        except OSError: pass
for pid in range(1, 100):
    if pid == os.getpid() or os.path.exists(f'/proc/{pid}/root' + '/run/dressage'): continue  # this sandbox
    try:
        if 'secret' in os.listdir(f'/proc/{pid}/root' + '/workspace'): escaped(f'the root of process {pid}')
    except OSError: pass
"""

_WRITE = """
import os
for path in ('/usr/x', '/etc/passwd', '/etc/ld.so.preload', '/x', '/run/dressage/agent.pyc',
             '/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger', '/proc/1/oom_score_adj',
             '/sys/kernel/uevent_helper', '/proc/sys/vm/overcommit_memory', '/proc/sys/kernel/modprobe',
             '/sys/fs/cgroup/cgroup.procs', '/proc/sys/fs/binfmt_misc/register'):
    try: fd = os.open(path, os.O_WRONLY | os.O_CREAT); escaped(f'{path} is open for writing')
    except OSError: pass
for name, text in (('uid_map', b'0 0 1'), ('gid_map', b'0 0 1'), ('setgroups', b'allow')):
    try: os.write(os.open(f'/proc/self/{name}', os.O_WRONLY), text); escaped(name)
    except OSError: pass
"""

_PRIVILEGE = """
import os, subprocess, shutil
if os.getuid() == 0 or os.geteuid() == 0: escaped('root')
for call in (lambda: os.setuid(0), lambda: os.setgroups([0]), lambda: os.setresgid(0, 0, 0)):
    try: call(); escaped('another id')
    except OSError: pass
for name in ('su', 'sudo', 'passwd', 'mount', 'newgrp', 'pkexec'):
    path = shutil.which(name)
    if path and os.stat(path).st_mode & 0o4000:
        program = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=-3, stderr=-3)
        try:
            if '0' in open(f'/proc/{program.pid}/status').read().split('Uid:')[1].split()[:4]: escaped(path)
        except OSError: pass
        program.kill()
shutil.copy('/bin/sh', '/workspace/sh')
try: os.chmod('/workspace/sh', 0o6755)
except OSError: pass
out = subprocess.run(['/workspace/sh', '-p', '-c', 'id -u'], capture_output=True).stdout.strip()
if out == b'0': escaped('a setuid shell')
"""

_LEASE = """
import fcntl
for kind in (1024, 1040):
    try:
        with open('leased', 'w') as file:
            fcntl.fcntl(file, kind, fcntl.F_WRLCK)
        escaped(kind)
    except OSError:
        pass
"""
_DEVICES = """
import os, stat
for path in ('/dev/mem', '/dev/kmem', '/dev/kmsg', '/dev/port', '/dev/kvm', '/dev/fuse', '/dev/net/tun',
             '/dev/vda', '/dev/sda', '/dev/nvidia0', '/dev/userfaultfd', '/proc/kcore', '/proc/kmsg',
             '/dev/tty', '/dev/vhost-vsock'):
    try: open(path, 'rb').close(); escaped(path)
    except OSError: pass
for mode in (stat.S_IFCHR, stat.S_IFBLK):
    try: os.mknod('/workspace/device', mode | 0o666, os.makedev(1, 1)); escaped('mknod')
    except OSError: pass
"""


async def _links(scene: Scene) -> str:
    """Links to the host's files in the place of what the host reads and writes."""
    target = scene.host.folder / "secret"
    await scene.box.run(
        f"ln -s {target} read; ln -s {target} write; ln -s {target.parent} folder; mkdir real; "
        f"ln -s /proc/1/root{target} around; ln /run/dressage/agent.pyc hard; ln /etc/passwd hard2; true"
    )
    found = []
    for name in ("read", "folder/secret", "around", str(target), "/proc/self/root" + str(target)):
        try:
            if scene.host.secret.encode() in await scene.box.read(name):
                found.append(f"read through {name}")
        except SandboxFileError:
            continue
    for name in ("write", "folder/x", "hard", "hard2"):
        try:
            await scene.box.write(name, b"changed")
        except SandboxFileError:
            continue
    if (await scene.box.run("cmp -s /etc/passwd hard2")).exit_code == 0:
        found.append("a hard link to a file of the system was written through")
    if (scene.host.folder / "x").exists():
        found.append("a file beside the host's secret")
    return "; ".join(found)


async def _race(scene: Scene) -> str:
    """A folder that is a link to the host's half of the time, while the host reads and writes in it."""
    flip = (
        "import os\n"
        "os.makedirs('a', exist_ok=True); open('a/secret', 'w').write('mine')\n"
        f"os.symlink({str(scene.host.folder)!r}, 'b')\n"
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "while True: libc.renameat2(-100, b'a', -100, b'b', 2)\n"
    )
    racing = asyncio.ensure_future(scene.box.run(["python3", "-c", flip], timeout_s=1.5))
    found = []
    copy = scene.host.folder / "copied"
    while not racing.done():
        for name in ("a/secret", "b/secret"):
            try:
                await scene.box.write(name, b"mine")
                data = await scene.box.read(name)
                await scene.box.download(name, copy)
                data += await asyncio.to_thread(copy.read_bytes)
            except SandboxError:
                continue
            if scene.host.secret.encode() in data:
                found.append("the host's secret was read")
    await racing
    archive = scene.host.folder / "archive.tar"
    await scene.box.pack("/workspace", archive)
    if scene.host.secret.encode() in await asyncio.to_thread(archive.read_bytes):
        found.append("the host's secret is in an archive")
    return "; ".join(found)


async def _odd(scene: Scene) -> str:
    """FIFOs, sockets, devices and endless files where the host reads: none may hold it up."""
    make = "import socket; socket.socket(socket.AF_UNIX).bind('socket')"
    await scene.box.run("mkfifo fifo; ln -s /dev/zero zero; truncate -s 80M sparse; ln -s loop loop")
    await scene.box.run(["python3", "-c", make])
    try:
        async with asyncio.timeout(5):
            for name in ("fifo", "zero", "socket", "loop", "/dev/tty", "/proc/self/mem", "/proc/1/environ"):
                for call in (scene.box.read(name), scene.box.download(name, scene.host.folder / "odd")):
                    try:
                        await call
                    except SandboxFileError:
                        continue
            if len(await scene.box.read("sparse", max_bytes=10)) != 10:
                return "the head of a sparse file did not come"
            if (await scene.box.run(["echo", "ok"])).stdout != b"ok\n":
                return "the sandbox does not answer"
    except TimeoutError:
        return "a file call was held up"
    return ""


async def _upload_over(scene: Scene) -> str:
    """A host file that is named to upload is read; a link in its place inside is replaced, not followed."""
    source = Path(scene.host.folder, "upload")
    await asyncio.to_thread(source.write_bytes, b"uploaded")
    await scene.box.run(f"ln -s {scene.host.folder}/secret in")
    await scene.box.upload(source, "in")
    return "" if await scene.box.read("in") == b"uploaded" else "an upload went elsewhere"


ATTEMPTS: tuple[Attempt, ...] = (
    inside(_KIND, "read /etc/shadow, homes, the host's import paths and run folders", _READ),
    inside(_KIND, "find a neighbour's or the host's secret anywhere", _SEARCH),
    inside(_KIND, "write system files, kernel settings, control groups", _WRITE),
    inside(_KIND, "become root, by call or setuid program", _PRIVILEGE),
    inside(_KIND, "open or make a device", _DEVICES),
    inside(_KIND, "take a lease on a file, against its reading", _LEASE),
    Attempt(_KIND, "file API: symbolic and hard links", _links),
    Attempt(_KIND, "file API: a folder that races with a link", _race),
    Attempt(_KIND, "file API: FIFOs, sockets, devices, sparse files, loops", _odd),
    Attempt(_KIND, "file API: an upload over a link", _upload_over),
)
