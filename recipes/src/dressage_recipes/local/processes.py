"""The engine and the proxy as processes of their own, which end with the loop however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from dressage_recipes.errors import RecipeError

READY_S = 120.0
STOP_S = 1.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class ServiceError(RecipeError):
    """A process that the loop needs did not start, or died."""


class Service:
    """A child that prints one JSON object when it is ready; ``async with`` starts and ends it.

    It has a process group of its own, so that Ctrl-C reaches the loop alone and the loop ends it in order;
    the kernel kills it where the loop itself is killed. What it prints goes to ``log``.
    """

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self._arguments = arguments
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self.ready: Mapping[str, Any] = {}
        self.peak_rss_kib = 0

    async def __aenter__(self) -> Self:
        # Spinning OpenMP threads would take the core that the other process needs.
        command = ["/usr/bin/env", "OMP_WAIT_POLICY=PASSIVE", sys.executable, *self._arguments]
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()),
            )
        try:
            self.ready = await asyncio.wait_for(self._read_ready(self._process), READY_S)
        except BaseException as error:
            await self.end()
            if isinstance(error, TimeoutError):
                raise ServiceError(
                    f"{self.name} was not ready within {READY_S:.0f} s", fix=self._look()
                ) from error
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.end()

    async def died(self) -> NoReturn:
        """Wait for the process to end by itself, then raise ServiceError."""
        assert self._process is not None
        code = await self._process.wait()
        raise ServiceError(f"{self.name} died (exit code {code})", fix=self._look())

    def measure(self) -> None:
        """Note the process's peak memory so far."""
        if self._process is None:
            return
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii", errors="replace")
            for line in status.splitlines():
                if line.startswith("VmHWM:"):
                    self.peak_rss_kib = int(line.split()[1])

    async def _read_ready(self, process: asyncio.subprocess.Process) -> Mapping[str, Any]:
        assert process.stdout is not None
        async for line in process.stdout:
            with contextlib.suppress(ValueError):
                said = json.loads(line)
                if isinstance(said, dict) and said.get("event") == "ready":
                    return said
        code = await process.wait()
        raise ServiceError(
            f"{self.name} did not start (exit code {code}): {self._last_words()}", fix=self._look()
        )

    async def end(self) -> None:
        """End it and all that it started, within ``STOP_S`` or by force. Again: nothing more."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        self.measure()
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            pass
        finally:
            # The whole group: nothing that the process started may stay.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def _look(self) -> str:
        return f"look into {self._log}"


def _die_with(parent: int) -> Any:
    def prepare() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


def engine_service(
    model: Path,
    log: Path,
    *,
    slots: int,
    context_length: int,
    retain_mib: int,
    threads: int,
    dtype: str,
    seed: int,
) -> Service:
    """The local engine on a free loopback port; ready with ``url``."""
    options: Mapping[str, object] = {
        "--model": model,
        "--port": 0,
        "--slots": slots,
        "--context-length": context_length,
        "--retain-mib": retain_mib,
        "--threads": threads,
        "--dtype": dtype,
        "--seed": seed,
    }
    words = [str(word) for pair in options.items() for word in pair]
    return Service("the engine", ["-m", "dressage_recipes.local.engine", *words], log)


def proxy_service(
    tokenizer: Path, engine_url: str, store: Path, key_file: Path, log: Path, *, context: int, reply: int
) -> Service:
    """The proxy on a free loopback port; ready with ``data_url`` and ``control_url``."""
    options: Mapping[str, object] = {
        "--tokenizer": tokenizer,
        "--engine": engine_url,
        "--store": store,
        "--port": 0,
        # Apart, so that what may reach the model can never reach the control plane.
        "--control-port": 0,
        "--control-key-file": key_file,
        "--context-window": context,
        "--max-output-tokens": reply,
        "--log-level": "warning",
    }
    words = [str(word) for pair in options.items() for word in pair]
    return Service("the proxy", ["-m", "dressage_proxy.cli", "serve", "--store-retain", *words], log)
