"""An image's files as the sandbox's own, for a provider that runs as root: an ID-mapped mount.

A sandbox maps one host user alone, and each of a root provider's has another one, so an overlay over files of
root's could not be written (EOVERFLOW). A mount that shows the owner of the image's work folder as the
sandbox's user (Linux 5.12; ext4, xfs, btrfs, tmpfs and others) is made between the outer bubblewrap, which is
root still, and the drop to that user. Where the kernel or the file system cannot, the work folder is copied.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .bwrap import Bubblewrap
from .interpreter import FLAGS

__all__ = ["UID", "can_map", "helper"]

UID = "@uid@"
"""Stands in the helper's command line for the sandbox's host user, which is chosen at the start."""

_TIMEOUT_S = 20.0
# source, target, its owner, the sandbox's user, folders to give to that user, "--", what comes next
_HELPER = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    result = libc.syscall(number, *args)
    if result < 0: sys.exit('idmap: %s' % os.strerror(ctypes.get_errno()))
    return result
source, target, owner, user = sys.argv[1:5]
end = sys.argv.index('--')
for folder in sys.argv[5:end]: os.chown(folder, int(user), int(user))
ready, tell = os.pipe()
leave, hold = os.pipe()
child = os.fork()
if child == 0:
    made = libc.unshare(0x10000000) == 0  # CLONE_NEWUSER: a mapping, that nothing ever runs in
    os.write(tell, b'1' if made else b'0')
    os.close(hold)
    os.read(leave, 1)
    os._exit(0)
if os.read(ready, 1) != b'1': sys.exit('idmap: no user namespace')
for kind in ('uid_map', 'gid_map'):
    with open('/proc/%d/%s' % (child, kind), 'w') as file: file.write('%s %s 1' % (owner, user))
space = os.open('/proc/%d/ns/user' % child, os.O_RDONLY)
os.close(hold)
os.waitpid(child, 0)
for fd in (ready, tell, leave): os.close(fd)
tree = call(428, -100, os.fsencode(source), 0x80001)  # open_tree: OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC
attributes = ctypes.create_string_buffer(struct.pack('QQQQ', 0x100000, 0, 0, space))  # MOUNT_ATTR_IDMAP
call(442, tree, b'', 0x1000, attributes, 32)  # mount_setattr: AT_EMPTY_PATH
call(429, tree, b'', -100, os.fsencode(target), 4)  # move_mount: MOVE_MOUNT_F_EMPTY_PATH
os.close(space)
os.execv(sys.argv[end + 1], sys.argv[end + 1:])
"""


def helper(source: str, target: str, owner: int, folders: tuple[str, ...]) -> tuple[str, ...]:
    """The command that mounts ``source`` at ``target`` with its ``owner`` shown as the sandbox's user.

    It also gives ``folders`` to that user, and is followed by the command that it becomes.
    """
    return (sys.executable, *FLAGS, "-c", _HELPER, source, target, str(owner), UID, *folders, "--")


def can_map(bubblewrap: Bubblewrap, folder: Path) -> bool:
    """Whether an ID-mapped mount of this folder can be made here, found by making one."""
    command = helper(str(folder), "/sys/lower", folder.stat().st_uid, ())
    outer = ["--dev-bind", "/", "/", "--tmpfs", "/sys", "--dir", "/sys/lower", "--cap-add", "ALL", "--"]
    words = [word.replace(UID, str(os.getuid() + 1)) for word in command]
    try:
        done = subprocess.run(
            [str(bubblewrap.path), *outer, *words, "/bin/true"],
            capture_output=True, env={}, timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
