"""The state of the stand-in: an account, its machines, and what goes wrong."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from ..errors import InvalidSpec
from ..protocol import Limits, Sandbox, SandboxProvider, SandboxSpec
from .config import E2BConfig

__all__ = ["Account", "Fault", "Machine"]

_SPEC = SandboxSpec(limits=Limits(pids=512, timeout_s=3600.0, disk_bytes=1 << 32, output_bytes=1 << 26))


@dataclass
class Fault:
    """What goes wrong with the next ``times`` requests whose ``METHOD /path`` begins with ``request``."""

    request: str
    status: int = 503
    times: int = 1
    after: bool = False
    """The request is done all the same, and its answer lost."""
    delay_s: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Machine:
    """One sandbox as the cloud keeps it."""

    id: str
    box: Sandbox
    asked: dict[str, Any]
    """The body of its create."""
    token: str
    ends: float
    """By the monotonic clock."""
    state: str = "running"
    timer: asyncio.TimerHandle | None = None
    timeouts: list[float] = field(default_factory=list)
    """Every time-out that was asked for, in seconds."""

    @property
    def metadata(self) -> dict[str, str]:
        """Its tags."""
        return dict(self.asked.get("metadata") or {})


class Account:
    """An account and its machines.

    Args:
        machines: makes what stands for a machine.
        second: real seconds that count as one, for deadlines of commands and lifetimes of machines.
    """

    def __init__(self, machines: SandboxProvider, *, second: float = 1.0) -> None:
        if not second > 0:
            raise InvalidSpec("second must be more than 0")
        self._provider = machines
        self.second = second
        self.api_key = f"e2b_{secrets.token_hex(20)}"
        self.url = ""
        self.machines: dict[str, Machine] = {}
        self.requests: list[str] = []
        """``METHOD /path`` of each request, in order."""
        self.faults: list[Fault] = []
        self.honours_keys = True
        """Whether a create that is repeated under its idempotency key gives the same machine again."""
        self._keys: dict[str, str] = {}
        self._ends: set[asyncio.Task[None]] = set()

    def config(self, **settings: Any) -> E2BConfig:
        """A configuration that reaches this stand-in."""
        own = {"api_key": self.api_key, "api_url": self.url, "sandbox_url": self.url, "backoff_s": 0.01}
        return E2BConfig(**{**own, **settings})

    def fault_of(self, request: str) -> Fault | None:
        """The fault that this request meets, counted."""
        self.requests.append(request)
        for fault in self.faults:
            if fault.times > 0 and request.startswith(fault.request):
                fault.times -= 1
                return fault
        return None

    @asynccontextmanager
    async def deadline(self, machine: Machine, pid: str, seconds: float | None) -> AsyncIterator[None]:
        """Kill a command's leader, and it alone, when its stream's time is over."""

        async def kill() -> None:
            await asyncio.sleep((seconds or 0.0) * self.second)
            await machine.box.run(["kill", "-9", pid])

        task = None if seconds is None else asyncio.ensure_future(kill())
        try:
            yield
        finally:
            if task is not None:
                task.cancel()
                await asyncio.wait({task})

    # -- what the control API does ----------------------------------------------------------------------
    async def make(self, body: dict[str, Any], key: str | None) -> Machine:
        """Create; an idempotency key that was seen gives the machine that it gave."""
        if key is not None and key in self._keys and self.honours_keys:
            return self.machines[self._keys[key]]
        box = await self._provider.create(_SPEC)
        machine = Machine(f"i{secrets.token_hex(9)}", box, body, secrets.token_hex(16), 0.0)
        self.machines[machine.id] = machine
        if key is not None:
            self._keys[key] = machine.id
        self.let_live(machine, float(body.get("timeout", 300)))
        return machine

    def let_live(self, machine: Machine, seconds: float) -> None:
        """Set its time-out, from now."""
        machine.timeouts.append(seconds)
        if machine.timer is not None:
            machine.timer.cancel()
        real = seconds * self.second
        machine.ends = time.monotonic() + real
        machine.timer = asyncio.get_running_loop().call_later(real, self._expire, machine.id)

    def _expire(self, machine_id: str) -> None:
        task = asyncio.ensure_future(self._end_quietly(machine_id))
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)

    async def _end_quietly(self, machine_id: str) -> None:
        await self.end(machine_id)

    async def end(self, machine_id: str) -> bool:
        """End a machine; whether there was one."""
        machine = self.machines.pop(machine_id, None)
        if machine is None:
            return False
        if machine.timer is not None:
            machine.timer.cancel()
        await machine.box.terminate()
        return True

    async def end_all(self) -> None:
        """End every machine."""
        for machine_id in list(self.machines):
            await self.end(machine_id)
        if self._ends:
            await asyncio.wait(set(self._ends))
