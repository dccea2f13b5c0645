"""Calls of the kernel that have led out of sandboxes, and new namespaces."""

from __future__ import annotations

import errno
import platform

from .. import seccomp
from ._attempt import Attempt, inside

__all__ = ["ATTEMPTS"]

_KIND = "kernel"
_GROUPS = {
    "mount and its newer forms": "mount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen "
    "fsconfig fsmount fspick mount_setattr",
    "keyctl": "keyctl add_key request_key",
    "bpf": "bpf",
    "userfaultfd": "userfaultfd",
    "perf_event_open": "perf_event_open",
    "io_uring": "io_uring_setup io_uring_enter io_uring_register",
    "setns and unshare": "setns unshare",
    "ptrace and its kin": "ptrace process_vm_readv process_vm_writev process_madvise pidfd_getfd kcmp",
    "kexec, modules, reboot, swap": "kexec_load kexec_file_load reboot init_module finit_module "
    "delete_module swapon swapoff acct",
    "file handles": "name_to_handle_at open_by_handle_at fanotify_init lookup_dcookie",
    "clock, kernel log, host name, quotas": "settimeofday clock_settime adjtimex clock_adjtime syslog "
    "sethostname setdomainname quotactl quotactl_fd vhangup memfd_secret",
    "ports and segments of the processor": "iopl ioperm modify_ldt uselib",
}


def _calls(names: str) -> str:
    """A program that makes each call on this machine; only the filter's answer counts as refused."""
    column = {"x86_64": 0, "aarch64": 1}.get(platform.machine(), 0)
    numbers = {name: seccomp.DENIED[name][column] for name in names.split()}
    return (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"for name, number in {numbers!r}.items():\n"
        "    if number is None: continue\n"
        "    ctypes.set_errno(0)\n"
        "    result = libc.syscall(number, 0, 0, 0, 0, 0, 0)\n"
        f"    if result != -1 or ctypes.get_errno() != {errno.EPERM}: escaped(f'{{name}}: {{result}}')\n"
    )


_NAMESPACES = """
import ctypes, os, subprocess
libc = ctypes.CDLL(None, use_errno=True)
flags = {'user': 0x10000000, 'pid': 0x20000000, 'net': 0x40000000, 'mount': 0x20000, 'uts': 0x4000000,
         'ipc': 0x8000000, 'cgroup': 0x2000000, 'time': 0x80}
for name, flag in flags.items():
    if libc.unshare(flag) == 0: escaped(f'unshare {name}')
    clone = {'x86_64': 56, 'aarch64': 220}[os.uname().machine]
    pid = libc.syscall(clone, flag | 17, 0, 0, 0, 0)
    if pid == 0: os._exit(0)
    if pid > 0: escaped(f'clone {name}')
args = (ctypes.c_uint64 * 11)(0x10000000)
pid = libc.syscall(435, args, ctypes.sizeof(args))
if pid == 0: os._exit(0)
if pid > 0: escaped('clone3 user')
bwrap = ['bwrap', '--unshare-all', '--ro-bind', '/', '/', 'id']
for command in (['unshare', '-Ur', 'id'], ['unshare', '-Urmpf', 'id'], bwrap):
    try:
        if subprocess.run(command, capture_output=True).returncode == 0: escaped(' '.join(command))
    except OSError: pass
"""

_FOREIGN = """
import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
if libc.syscall(0x40000000 | 39) > 0: escaped('the x32 numbers')
pid = os.fork()
if pid == 0:
    code = bytes.fromhex('b814000000cd80c3')  # mov eax, 20 (getpid of i386); int 0x80; ret
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(code)
    call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    os._exit(1 if call() > 0 else 0)
_, status = os.waitpid(pid, 0)
if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 1: escaped('the i386 numbers')
"""

_TERMINAL = """
import ctypes, fcntl, os, pty, termios
master, slave = os.openpty()
for request in (0x5412, 0x541C, 0x5423):  # the last sets a line discipline: 0, the one that it has
    try: fcntl.ioctl(slave, request, bytes(4)); escaped(f'a terminal was meddled with by {request:x}')
    except OSError: pass
    libc = ctypes.CDLL(None, use_errno=True)
    high = ctypes.c_ulong(request | 1 << 32)
    if libc.ioctl(slave, high, bytes(4)) == 0: escaped(f'{request:x} with a high bit')
"""

_FILTER = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
status = open('/proc/self/status').read()
if 'NoNewPrivs:\\t1' not in status or 'Seccomp:\\t2' not in status: escaped('no filter')
sets = [line.split()[1] for line in status.splitlines() if line.startswith('Cap')]
if any(int(each, 16) for each in sets): escaped('capabilities')
for option, value in ((38, 0), (24, 21), (8, 1), (28, 0)):
    libc.prctl(option, value, 0, 0, 0)
if 'NoNewPrivs:\\t1' not in open('/proc/self/status').read(): escaped('no_new_privs was taken off')
"""


ATTEMPTS: tuple[Attempt, ...] = (
    inside(_KIND, "nested user and other namespaces", _NAMESPACES),
    *[inside(_KIND, name, _calls(names)) for name, names in _GROUPS.items()],
    *([inside(_KIND, "the numbers of i386 and x32", _FOREIGN)] if platform.machine() == "x86_64" else []),
    inside(_KIND, "input pushed into a terminal", _TERMINAL),
    inside(_KIND, "a capability, or the filter taken off", _FILTER),
)
