"""Starts bubblewrap, learns process 1 of the sandbox, and ends both.

bubblewrap is two processes while it sets up, and if the outer one dies then, the inner one waits for ever
(seen in 0.11). So nothing here kills the outer one: not --die-with-parent, which is not used, and not
SIGPIPE, for which it holds the reading end of its own report. Instead process 1 ends when the control
socket closes or when the owner's process ends, which it sees through a pidfd; a bubblewrap that is still
setting up comes to that point by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .arguments import AGENT, Arguments
from .bwrap import Bubblewrap
from .errors import SandboxStartFailed
from .idmap import UID
from .interpreter import FLAGS

__all__ = ["Launcher", "Process", "readable"]

_HOST_UIDS = range(0x6D00_0000, 0x6D10_0000)
"""Host uids for sandboxes of a root process: far from any account; one each, so that no per-user limit of
the kernel (processes, pipes, keys) is shared between sandboxes."""
_NOBODY = 65534
_DROP = (
    "import os, sys; u = int(sys.argv[1]); os.setgroups([]); os.setresgid(u, u, u); os.setresuid(u, u, u); "
    "os.execv(sys.argv[2], sys.argv[2:])"
)


async def readable(fd: int, timeout_s: float) -> bool:
    """Wait until ``fd`` can be read or has ended; False on a time-out."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, _resolve, ready)
    try:
        await asyncio.wait_for(ready, timeout_s)
    except TimeoutError:
        return bool(select.select([fd], [], [], 0)[0])
    finally:
        loop.remove_reader(fd)
    return True


def _all_mapped(maps: list[list[int]], uids: range) -> bool:
    return any(first <= uids.start and uids.stop <= first + count for first, _, count in maps)


def _resolve(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


@dataclass(eq=False, slots=True)
class Process:
    """A started bubblewrap: its own process, process 1 inside (0 until known), the host's control socket."""

    popen: subprocess.Popen[bytes]
    exit_fd: int
    info_fd: int
    error_fd: int
    control: socket.socket
    inner_pid: int = 0
    inner_fd: int = -1

    async def learn_inner(self, timeout_s: float) -> int:
        """The host's pid of process 1 inside.

        Raises:
            SandboxStartFailed: bubblewrap ended first, with what it said.
        """
        if self.inner_pid:
            return self.inner_pid
        text = b""
        while not text.rstrip().endswith(b"}"):
            if not await readable(self.info_fd, timeout_s):
                raise SandboxStartFailed(f"bubblewrap did not start within {timeout_s} s")
            piece = os.read(self.info_fd, 4096)
            if not piece:
                raise SandboxStartFailed(await self.last_words())
            text += piece
        pid = int(json.loads(text)["child-pid"])
        with contextlib.suppress(ProcessLookupError):  # dead already: its pid must not be used
            self.inner_fd = os.pidfd_open(pid)
            self.inner_pid = pid
        return pid

    async def last_words(self) -> str:
        """What bubblewrap or the agent wrote to standard error before it ended."""
        await readable(self.exit_fd, 1.0)
        os.set_blocking(self.error_fd, False)
        try:
            said = os.read(self.error_fd, 4096).decode("utf-8", "replace").strip()
        except BlockingIOError:
            said = ""
        return said or f"bubblewrap ended with status {self.popen.poll()} and said nothing"

    def kill(self) -> None:
        """End process 1 inside, and with it everything inside; bubblewrap follows by itself."""
        self.control.close()  # before process 1 is known this alone ends it, as soon as it looks
        if self.inner_fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.inner_fd, signal.SIGKILL)

    async def end(self, patience_s: float = 1.7) -> bool:
        """Kill, wait until nothing is left inside, and free every descriptor.

        False if that took too long; then it may be called again.
        """
        if self.exit_fd < 0:
            return True
        give_up = time.monotonic() + patience_s
        self.kill()
        if not self.inner_pid:
            with contextlib.suppress(SandboxStartFailed, ValueError):
                await self.learn_inner(patience_s)
            self.kill()
        # Process 1 is let go by the kernel only after all others inside; then bubblewrap reaps it and ends.
        for fd in (self.inner_fd, self.exit_fd):
            if fd >= 0 and not await readable(fd, max(0.0, give_up - time.monotonic())):
                return False
        self.release()
        return True

    def release(self) -> None:
        """Reap and close."""
        self.popen.wait()
        for fd in (self.exit_fd, self.info_fd, self.error_fd, self.inner_fd):
            if fd >= 0:
                os.close(fd)
        self.exit_fd = self.info_fd = self.error_fd = self.inner_fd = -1
        self.control.close()


class Launcher:
    """Starts sandboxes with one bubblewrap program. A root process gives each an unprivileged host uid."""

    def __init__(self, bubblewrap: Bubblewrap, python: str) -> None:
        self.bubblewrap = bubblewrap
        self._python = python
        self._setpriv = shutil.which("setpriv", path="/usr/bin:/bin:/usr/sbin:/sbin")
        maps = [
            [int(n) for n in line.split()] for line in Path("/proc/self/uid_map").read_text().splitlines()
        ]
        one = range(_NOBODY, _NOBODY + 1)
        self._uids = next((uids for uids in (_HOST_UIDS, one) if _all_mapped(maps, uids)), range(0))
        root = os.geteuid() == 0
        self.drops_root = root and len(self._uids) > 0
        self.stuck_as_root = root and not self._uids and any(outside == 0 for _, outside, _ in maps)
        """Root of the machine, in a user namespace with no other uid to give to a sandbox."""

    def start(self, arguments: Arguments, outer: Sequence[str] = (), python: Sequence[str] = ()) -> Process:
        """Start, inside an outer bubblewrap with these arguments if there are any; closes ``arguments``.

        Raises:
            SandboxStartFailed: the program could not be started.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        owner = os.pidfd_open(os.getpid())
        info, info_w = os.pipe2(os.O_CLOEXEC)
        error, error_w = os.pipe2(os.O_CLOEXEC)
        try:
            command = [*(python or [self._python]), *FLAGS, AGENT, str(theirs.fileno()), str(owner)]
            arguments.add("--info-fd", str(info_w))
            popen = self._spawn(arguments, command, (theirs.fileno(), owner, info, info_w), error_w, outer)
        except OSError as failure:
            os.close(info)
            os.close(error)
            ours.close()
            raise SandboxStartFailed(f"{self.bubblewrap.path}: {failure}") from failure
        finally:
            theirs.close()
            os.close(owner)
            os.close(info_w)
            os.close(error_w)
            arguments.close()
        return Process(popen, os.pidfd_open(popen.pid), info, error, ours)

    def check(self) -> tuple[int, str]:
        """Make the emptiest sandbox: exit status and what bubblewrap said."""
        arguments = Arguments()
        # As process 1: bubblewrap does not wait for an init of its own, which would stay a zombie.
        arguments.add("--unshare-all", "--unshare-user", "--disable-userns", "--as-pid-1")
        arguments.add("--uid", "1000", "--gid", "1000")
        arguments.add("--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev", "--clearenv")
        for name in ("lib", "lib64", "bin"):
            if Path("/", name).exists():
                arguments.add("--ro-bind", f"/{name}", f"/{name}")
        error, error_w = os.pipe2(os.O_CLOEXEC)
        try:
            popen = self._spawn(arguments, ["/bin/true"], (), error_w)
        finally:
            os.close(error_w)
            arguments.close()
        with os.fdopen(error, "rb") as said:
            text = said.read(4096).decode("utf-8", "replace").strip()
        return popen.wait(), text

    def _spawn(
        self,
        arguments: Arguments,
        command: list[str],
        fds: tuple[int, ...],
        stderr: int,
        outer: Sequence[str] = (),
    ) -> subprocess.Popen[bytes]:
        # Neither the spec's secrets nor the number of mounts may meet the limits or the publicity of argv.
        words = arguments.data(b"".join(word.encode() + b"\0" for word in arguments.words), "args")
        env: dict[str, str] = {}
        program = [str(self.bubblewrap.path)]
        if self.drops_root:
            # By descriptor: the sandbox's uid may not walk to a program in root's home.
            uid = str(secrets.choice(self._uids))
            program = [*self._drop_root(uid), arguments.program(self.bubblewrap.path)]
            if outer:
                program = [program[-1], *(word.replace(UID, uid) for word in outer), *program]
            if self.bubblewrap.libs is not None:
                env["LD_LIBRARY_PATH"] = arguments.program(self.bubblewrap.libs)
        elif outer:
            program = [*program, *outer, *program]
        return subprocess.Popen(
            [*program, "--args", words, "--", *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr,
            env=env, cwd="/", pass_fds=(*fds, *arguments.fds),
            # A terminal's Ctrl-C is the owner's to act on: bubblewrap must not die of it in mid-set-up.
            process_group=0,
        )  # fmt: skip

    def _drop_root(self, uid: str) -> list[str]:
        if self._setpriv is not None:
            return [self._setpriv, "--reuid", uid, "--regid", uid, "--clear-groups", "--"]
        return [sys.executable, *FLAGS, "-c", _DROP, uid]
