"""Sees to it that a reaper watches the folder of an owner's sandboxes."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import subprocess
import sys
import threading
import time
from pathlib import Path

from .interpreter import FLAGS
from .owner import Owner, file_name
from .owners import Records
from .reaper import lock

__all__ = ["Watch"]

_START_S = 20.0
_PAUSE_S = 60.0
# The package without its __init__, whose imports a reaper has no use for.
_PROGRAM = (
    "import sys, types; p = types.ModuleType('dressage_sandbox'); p.__path__ = [sys.argv[1]]; "
    "sys.modules[p.__name__] = p; from dressage_sandbox.reaper import main; main(sys.argv[2])"
)
_log = logging.getLogger("dressage_sandbox.reaper")


class Watch:
    """Starts a reaper where none watches ``folder``. ``wanted`` False: never.

    From ``begin`` to ``end`` a file tells that this process is an owner, also while it has no sandbox: a
    reaper that left in each pause would be started for each sandbox.
    """

    def __init__(self, folder: Path, *, wanted: bool = True) -> None:
        self._folder = folder
        self._wanted = wanted
        self._presence: Path | None = None
        self._starting = threading.Lock()
        self._not_before = 0.0

    def begin(self) -> None:
        """Say that an owner is here, and start a reaper where none watches. Blocks: for a thread."""
        if not self._wanted:
            return
        if self._presence is None:
            Records(self._folder).prepare()
            name = file_name(Owner.this_process(), f"owner-{secrets.token_hex(4)}", "open")
            presence = self._folder / name
            presence.touch()
            self._presence = presence
        self.ensure()

    def end(self) -> None:
        """The owner leaves. Idempotent."""
        presence, self._presence = self._presence, None
        if presence is not None:
            presence.unlink(missing_ok=True)

    @property
    def missing(self) -> bool:
        """Whether one is to be started. To be asked after something was put into the folder."""
        if not self._wanted or self._starting.locked() or time.monotonic() < self._not_before:
            return False
        try:
            return self._free()
        except OSError as error:
            self._give_up(str(error))
            return False

    @property
    def watched(self) -> bool:
        """Whether a reaper watches the folder now."""
        try:
            return not self._free()
        except OSError:  # there is no folder, or none that one could watch
            return False

    def _free(self) -> bool:
        fd = lock(self._folder)
        if fd is None:
            return False
        os.close(fd)
        return True

    def ensure(self) -> None:
        """Start one where it is missing."""
        if self.missing:
            self.start()

    def start(self) -> None:
        """Start one, if none watches. Blocks for as long as a small Python takes to start: for a thread."""
        with self._starting:
            if self.watched:  # another create of this process had one started just now
                return
            command = [sys.executable, *FLAGS, "-c", _PROGRAM, str(Path(__file__).parent), str(self._folder)]
            try:
                done = subprocess.run(
                    command, stdin=subprocess.DEVNULL, capture_output=True,
                    env={}, cwd="/", timeout=_START_S, check=True,
                )  # fmt: skip
            except (OSError, subprocess.SubprocessError) as error:
                # An owner that could make no sandbox tidies up at once: then there is nothing to watch.
                if self._folder.exists():
                    self._give_up(_why(error))
                return
        if done.stdout:
            _bury(int(done.stdout))

    def _give_up(self, why: str) -> None:
        self._not_before = time.monotonic() + _PAUSE_S
        _log.warning(
            "no reaper watches %s: should this process be killed, what it leaves is removed by the next one "
            "that starts, or by `dressage-sandbox pool reap` (%s)", self._folder, why,
        )  # fmt: skip


def _why(error: Exception) -> str:
    """In a line: the last that the program said, where it said something."""
    if isinstance(error, subprocess.CalledProcessError):
        said = error.stderr.decode(errors="replace").strip().splitlines() if error.stderr else []
        return said[-1] if said else f"its program ended with {error.returncode}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it did not start within {_START_S:g} s"
    return str(error)


def _bury(pid: int) -> None:
    """Where orphans come to this very process (it is process 1 of a container, say), wait for the reaper."""
    with contextlib.suppress(ChildProcessError):
        if os.waitpid(pid, os.WNOHANG) == (0, 0):
            threading.Thread(target=_wait, args=(pid,), name="dressage-reaper-ends", daemon=True).start()


def _wait(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
