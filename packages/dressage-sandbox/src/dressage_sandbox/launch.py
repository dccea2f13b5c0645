"""Starts bubblewrap, learns process 1 of the sandbox, and ends both.

bubblewrap is asked to die with the THREAD that starts it, so ``start`` must run on the event loop's own
thread and never in an executor.
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
from dataclasses import dataclass
from pathlib import Path

from .arguments import AGENT, Arguments
from .bwrap import Bubblewrap
from .errors import SandboxStartFailed
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
        if self.inner_fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.inner_fd, signal.SIGKILL)
        elif self.popen.poll() is None:
            self.popen.kill()

    async def end(self, patience_s: float = 1.5) -> bool:
        """Kill, wait until nothing is left inside, and free every descriptor; False if something stayed."""
        self.control.close()  # the agent takes this as its end, however early it was
        if not self.inner_pid and self.popen.poll() is None:
            with contextlib.suppress(SandboxStartFailed, ValueError):
                await self.learn_inner(0.5)
        self.kill()
        # bubblewrap reaps process 1, which the kernel lets go only after all others inside.
        ended = await readable(self.exit_fd, patience_s)
        if not ended:
            self.popen.kill()
            ended = await readable(self.exit_fd, 0.3)
        self.release()
        return ended

    def release(self) -> None:
        """Reap and close, without waiting."""
        self.popen.poll()
        if self.popen.returncode is None:
            self.popen.returncode = -signal.SIGKILL  # stuck in the kernel: nothing more can be asked of it
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
        self.drops_root = os.geteuid() == 0
        self._setpriv = shutil.which("setpriv", path="/usr/bin:/bin:/usr/sbin:/sbin")
        mapped = Path("/proc/self/uid_map").read_text().split()
        all_mapped = mapped[:1] == ["0"] and int(mapped[2]) > _HOST_UIDS.stop
        self._uids = _HOST_UIDS if all_mapped else range(_NOBODY, _NOBODY + 1)

    def start(self, arguments: Arguments) -> Process:
        """Start, and close ``arguments``.

        Raises:
            SandboxStartFailed: the program could not be started.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        info, info_w = os.pipe2(os.O_CLOEXEC)
        error, error_w = os.pipe2(os.O_CLOEXEC)
        try:
            command = [self._python, *FLAGS, AGENT, str(theirs.fileno())]
            arguments.add("--info-fd", str(info_w))
            popen = self._spawn(arguments, command, (theirs.fileno(), info_w), error_w)
        except OSError as failure:
            os.close(info)
            os.close(error)
            ours.close()
            raise SandboxStartFailed(f"{self.bubblewrap.path}: {failure}") from failure
        finally:
            theirs.close()
            os.close(info_w)
            os.close(error_w)
            arguments.close()
        return Process(popen, os.pidfd_open(popen.pid), info, error, ours)

    def check(self) -> tuple[int, str]:
        """Make the emptiest sandbox: exit status and what bubblewrap said."""
        arguments = Arguments()
        arguments.add("--unshare-all", "--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000")
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
        self, arguments: Arguments, command: list[str], fds: tuple[int, ...], stderr: int
    ) -> subprocess.Popen[bytes]:
        # Neither the spec's secrets nor the number of mounts may meet the limits or the publicity of argv.
        words = arguments.data(b"".join(word.encode() + b"\0" for word in arguments.words), "args")
        env: dict[str, str] = {}
        program = [str(self.bubblewrap.path)]
        if self.drops_root:
            # By descriptor: the sandbox's uid may not walk to a program in root's home.
            program = [*self._drop_root(), f"/proc/self/fd/{arguments.place(self.bubblewrap.path)}"]
            if self.bubblewrap.libs is not None:
                env["LD_LIBRARY_PATH"] = f"/proc/self/fd/{arguments.place(self.bubblewrap.libs)}"
        return subprocess.Popen(
            [*program, "--args", words, "--", *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr,
            env=env, cwd="/", pass_fds=(*fds, *arguments.fds),
        )  # fmt: skip

    def _drop_root(self) -> list[str]:
        uid = str(secrets.choice(self._uids))
        if self._setpriv is not None:
            return [self._setpriv, "--reuid", uid, "--regid", uid, "--clear-groups", "--"]
        return [sys.executable, *FLAGS, "-c", _DROP, uid]
