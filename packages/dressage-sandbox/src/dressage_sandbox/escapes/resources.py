"""Bombs: none may outlive its lease, nor slow a neighbour's ``echo`` beyond twice its time."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Coroutine
from typing import Any

from ..errors import SandboxError
from ..sandbox import BubblewrapSandbox
from ._attempt import Attempt
from ._scene import Scene

__all__ = ["ATTEMPTS", "MOST"]

_KIND = "resources"
MOST = 2.0
_ECHOES = 25
_TRIES = 4
"""Other work of the machine may slow one measurement; a neighbour that is really slowed is always so."""

Check = Callable[[BubblewrapSandbox, bytes], str]


async def _echo_ms(box: BubblewrapSandbox) -> float:
    times = []
    for _ in range(_ECHOES):
        started = time.perf_counter()
        result = await box.run(["echo", "ok"])
        times.append((time.perf_counter() - started) * 1e3)
        if result.stdout != b"ok\n":
            raise SandboxError(f"the neighbour's echo answered {result}")
    return statistics.median(times)


async def _hold(scene: Scene, command: str | list[str]) -> str:
    """Run it for as long as the neighbour is measured; "" or what went wrong."""
    best = (float("inf"), 0.0, 0.0)
    for _ in range(_TRIES):
        alone = await _echo_ms(scene.neighbour)
        bomb = asyncio.ensure_future(scene.box.run(command, timeout_s=60, output_bytes=4096))
        await asyncio.sleep(0.3)
        beside = await _echo_ms(scene.neighbour)
        bomb.cancel()
        await _settled(bomb)
        best = min(best, (beside / alone, alone, beside))
        if best[0] <= MOST:
            break
        await asyncio.sleep(0.5)
    ratio, alone, beside = best
    told = f"neighbour's echo {alone:.1f} -> {beside:.1f} ms, x{ratio:.2f}"
    return f"measured: {told}" if ratio <= MOST else told


async def _settled(work: asyncio.Future[Any] | Coroutine[Any, Any, Any]) -> None:
    try:
        await work
    except (asyncio.CancelledError, SandboxError):
        return


def _bomb(name: str, command: str | list[str], after: str = "", expected: bytes = b"") -> Attempt:
    """An attempt that runs ``command``, and afterwards ``after`` in the same sandbox, which must answer."""

    async def act(scene: Scene) -> str:
        told = await _hold(scene, command)
        if after:
            result = await scene.box.run(after, timeout_s=10)
            if result.stdout.strip() != expected:
                return f"afterwards {after!r} gave {result.stdout[-100:]!r}, not {expected!r}"
        return told

    return Attempt(_KIND, name, act, slow=True)


_MEMORY = "x = []\nwhile True: x.append(bytearray(8 << 20))"
_MEMORY_MANY = (
    "import os\n"
    "for _ in range(20):\n"
    "    if os.fork() == 0:\n"
    "        x = []\n"
    "        while True: x.append(bytearray(1 << 20))\n"
    "while True: os.wait()\n"
)
_DESCRIPTORS = (
    "import os, time, socket\n"
    "for _ in range(20):\n"
    "    if os.fork() == 0:\n"
    "        held = []\n"
    "        try:\n"
    "            while True: held += [*os.pipe(), *socket.socketpair()]\n"
    "        except OSError: time.sleep(60)\n"
    "time.sleep(60)\n"
)
_INODES = (
    "i=0; while :; do mkdir -p d$i && touch d$i/a d$i/b d$i/c d$i/d || break; i=$((i+1)); done; sleep 60"
)
_DISK = "cat /dev/zero >/tmp/full; cat /dev/zero >full; cat /dev/zero >/dev/shm/full; sleep 60"
_GROW = "while :; do echo x >>/tmp/grown; done"
_DAEMONS = (
    f"for i in 1 2 3 4 5; do env -i setsid sh -c '(setsid sh -c \"{_GROW}\" &) &' >/dev/null 2>&1; done; "
    "trap '' TERM INT HUP; sleep 60"
)


async def _ended(scene: Scene) -> str:
    """A tree that daemonises and clears its environment: gone with its command's time-out."""
    result = await scene.box.run(_DAEMONS, timeout_s=0.5)
    if not result.timed_out:
        return "the command did not time out"
    sizes = [(await scene.box.run("wc -c </tmp/grown")).stdout for _ in "ab"]
    return "" if sizes[0] == sizes[1] else "a daemon of a command that timed out still writes"


async def _flood_is_bounded(scene: Scene) -> str:
    """A flood of output, drained and counted, and of a bounded answer."""
    result = await scene.box.run("yes", timeout_s=1.0, output_bytes=4096)
    return "" if result.timed_out and len(result.stdout) <= 4096 < result.stdout_bytes else f"{result}"


ATTEMPTS: tuple[Attempt, ...] = (
    _bomb("fork bomb", "while :; do (sleep 60 &) ; done", "echo ok", b"ok"),
    _bomb("fork bomb of busy processes", ":() { : | : & }; while :; do :; done", "echo ok", b"ok"),
    _bomb("48 busy processes", "for i in $(seq 40); do (while :; do :; done) & done; wait", "echo ok", b"ok"),
    _bomb("memory bomb", ["python3", "-c", _MEMORY], "echo ok", b"ok"),
    _bomb("memory bomb of many processes", ["python3", "-c", _MEMORY_MANY], "echo ok", b"ok"),
    _bomb("disk filling", _DISK, "rm -f full /tmp/full /dev/shm/full; echo ok >f && cat f", b"ok"),
    _bomb("inode filling", _INODES, "rm -rf d*; echo ok", b"ok"),
    _bomb("output flood", "yes & yes >&2 & cat /dev/zero", "echo ok", b"ok"),
    _bomb("descriptor exhaustion", ["python3", "-c", _DESCRIPTORS], "echo ok", b"ok"),
    _bomb("daemons without environment", _DAEMONS, "echo ok", b"ok"),
    Attempt(_KIND, "daemons that outlive a time-out", _ended),
    Attempt(_KIND, "an output flood's answer", _flood_is_bounded),
)
