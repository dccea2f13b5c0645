"""A sandbox at E2B: a remote one with a lifetime that is kept up from here, and that can be paused."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import SandboxError, SandboxGone
from ..protocol import Endpoint, OnOutput, RunResult, SandboxSpec
from ..remote import RemoteSandbox, Snapshots
from .config import E2BConfig

if TYPE_CHECKING:
    from ._sdk import Cloud, Handle

__all__ = ["E2BSandbox"]

_SLACK_S = 1.0
_PORT_HEADERS = ("E2b-Sandbox-Id", "E2b-Sandbox-Port")
_log = logging.getLogger("dressage_sandbox.e2b")


def server_time_s(config: E2BConfig, left_s: float) -> float:
    """The time-out that E2B is asked for where ``left_s`` are left: longer, as far as the plan goes."""
    return min(left_s + config.margin_s, config.max_lifetime_s)


class E2BSandbox(RemoteSandbox):
    """See ``protocol.Sandbox``. Made by ``E2BProvider.create``.

    It exists at E2B for longer than its time to live, by construction; one whose time to live is beyond what
    the plan takes at once is extended by heartbeat, from this host's monotonic clock. Should this process
    die, E2B ends it when the last time-out that was asked for is over.
    """

    def __init__(
        self,
        spec: SandboxSpec,
        handle: Handle,
        cloud: Cloud,
        *,
        tag: str,
        on_end: Callable[[RemoteSandbox], None],
        snapshots: Snapshots,
    ) -> None:
        self.handle = handle
        self.tag = tag
        self._cloud = cloud
        self._server_ends = time.monotonic() + server_time_s(cloud.config, spec.ttl_s)
        relay = None if spec.relay is None else f"http://{spec.relay}"
        super().__init__(
            handle.id,
            spec,
            handle,
            on_end=on_end,
            relay_url=relay,
            expose=self._reach,
            snapshots=snapshots,
        )
        self._beat = self._life.begin(self._keep_up())

    @property
    def paused(self) -> bool:
        """Whether it was paused, and not resumed since."""
        return self._life.asleep

    async def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        output_bytes: int | None = None,
        on_output: OnOutput | None = None,
    ) -> RunResult:
        """See ``RemoteSandbox.run``. Raises ``SandboxError`` while it is paused."""
        self._check_awake()
        return await super().run(
            command,
            cwd=cwd,
            env=env,
            stdin=stdin,
            timeout_s=timeout_s,
            output_bytes=output_bytes,
            on_output=on_output,
        )

    def _check_awake(self) -> None:
        if self.paused and self.alive:
            raise SandboxError(f"sandbox {self.id} is paused: resume() it first")

    async def pause(self) -> None:
        """Stop it with its memory and files kept; services go on after ``resume``. Its time to live runs on.

        Commands that run lose their caller: they end as infrastructure failures.
        """
        self._life.check()
        if not self.paused:
            self._life.sleeps()
            try:
                await self._life.result(self._cloud.pause(self.id))
            except BaseException:
                self._life.asleep = False
                raise

    async def resume(self) -> None:
        """Let a paused sandbox go on, for as long as it has left."""
        self._life.check()
        if not self.paused:
            return
        left = server_time_s(self._cloud.config, self.expires_in_s)
        await self._life.result(self._cloud.connect(self.id, left))
        self._server_ends = time.monotonic() + left
        self._life.asleep = False

    async def renew(self, ttl_s: float) -> None:
        """See ``protocol.Sandbox.renew``; E2B hears of it at once."""
        await super().renew(ttl_s)
        await self._life.result(self._extend())

    async def _keep_up(self) -> None:
        """The heartbeat: never let E2B's time-out come nearer than two thirds of the longest one."""
        patience = self._cloud.config.max_lifetime_s / 3
        while True:
            left = self._server_ends - time.monotonic()
            if self.expires_in_s + self._cloud.config.margin_s <= left + _SLACK_S or self.paused:
                await asyncio.sleep(min(patience, max(left, 0.01)))
                continue
            await asyncio.sleep(max(0.0, left - 2 * patience))
            try:
                await self._extend()
            except SandboxGone as error:
                self.lost(str(error))
                return
            except SandboxError as error:  # E2B did not answer: there are two thirds left to try again
                _log.warning("a heartbeat failed, and is tried again: %s", error)
                await asyncio.sleep(min(patience / 10, 5.0))

    async def _extend(self) -> None:
        if self.paused:
            return
        wanted = server_time_s(self._cloud.config, self.expires_in_s)
        asked = time.monotonic()
        await self._cloud.set_timeout(self.id, wanted)
        self._server_ends = asked + wanted

    async def _reach(self, port: int) -> Endpoint:
        sandbox_url = self._cloud.config.sandbox_url
        if sandbox_url is not None:
            return Endpoint(sandbox_url, dict(zip(_PORT_HEADERS, (self.id, str(port)), strict=True)))
        host, token = self.handle.host_of(port)
        return Endpoint(f"https://{host}", {} if token is None else {"e2b-traffic-access-token": token})
