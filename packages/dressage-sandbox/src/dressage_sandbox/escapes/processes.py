"""Processes of the host, and process 1 of the sandbox itself."""

from ._attempt import Attempt, inside

__all__ = ["ATTEMPTS"]

_KIND = "processes"

_SIGNALS = """
import os, signal
for pid in (T['pid'], T['own_pid'], T['neighbour'], -T['pid']):
    for signum in (0, signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(pid, signum)
            escaped(f'signal {signum} to {pid}')
        except OSError: pass
try: os.pidfd_open(T['pid']); escaped('a pidfd of a host process')
except OSError: pass
"""

_BROADCAST = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for pid, signum in ((-1, signal.SIGTERM), (1, signal.SIGKILL), (1, signal.SIGSTOP)):
    try: os.kill(pid, signum)
    except OSError: pass
"""

_TRACE = """
import ctypes, os, subprocess, time
libc = ctypes.CDLL(None, use_errno=True)
child = subprocess.Popen(['sleep', '60'])
buffer = ctypes.create_string_buffer(64)
class Vec(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]
local, remote = Vec(ctypes.addressof(buffer), 64), Vec(ctypes.addressof(buffer), 64)
for pid in (T['pid'], T['own_pid'], 1, child.pid, os.getppid()):
    if libc.ptrace(16, pid, 0, 0) == 0 or libc.ptrace(0x4206, pid, 0, 0) == 0: escaped(f'ptrace of {pid}')
    got = libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    if got >= 0: escaped(f'memory of {pid}')
if libc.ptrace(0, 0, 0, 0) == 0: escaped('PTRACE_TRACEME')
child.kill()
"""

_READ = """
import glob, os
for pid in {*(p.split('/')[2] for p in glob.glob('/proc/[0-9]*')), str(T['pid']), str(T['own_pid'])}:
    for name in ('environ', 'cmdline', 'maps', 'mem', 'auxv', 'stack', 'root/etc/shadow', 'cwd/secret'):
        try:
            with open(f'/proc/{pid}/{name}', 'rb') as file: data = file.read(1 << 16)
        except (OSError, OverflowError): continue
        if T['secret'].encode() in data and int(pid) != os.getpid(): escaped(f'/proc/{pid}/{name}')
"""

_FIRST = """
import os
for name in ('mem', 'environ', 'fd', 'root', 'cwd', 'exe', 'ns/user', 'map_files'):
    path = f'/proc/1/{name}'
    try:
        if name in ('fd', 'map_files'): os.listdir(path)
        elif name in ('root', 'cwd', 'exe', 'ns/user'): os.readlink(path)
        else: open(path, 'r+b' if name == 'mem' else 'rb').read(1)
        escaped(path)
    except OSError: pass
"""


ATTEMPTS: tuple[Attempt, ...] = (
    inside(_KIND, "signal, stop or kill a host process", _SIGNALS),
    inside(_KIND, "signal everything, process 1 too", _BROADCAST),
    inside(_KIND, "ptrace or read the memory of another process", _TRACE),
    inside(_KIND, "read a host process's environ, cmdline, memory, root", _READ),
    inside(_KIND, "read or write process 1 of the sandbox", _FIRST),
)
