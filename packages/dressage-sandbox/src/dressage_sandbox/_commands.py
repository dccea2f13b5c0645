"""Commands and services of a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ._calls import Calls
from .channel import Call, Channel
from .errors import ArgumentTooLong, InvalidSpec, SandboxFileError, SandboxGone
from .inside import wire
from .protocol import OnOutput, RunResult
from .requests import OTHER_WAY, arguments_of, check_seconds, path_of, variables_of
from .services import BubblewrapService, result_of

__all__ = ["CommandCalls"]

GUARD_S = 5.0
"""How much longer than its time-out a command's answer may take before the agent counts as lost."""
_E2BIG = 7


class CommandCalls(Calls):
    """``run`` and ``start``."""

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
        """Run argv (a sequence) or a shell line (a str), and wait until it and its output have ended.

        A program that is missing answers exit code 127, one that cannot be executed 126, as in a shell.
        A background process that lets go of the output outlives its command, and ends with the sandbox.
        At the time-out the command's whole tree is killed, daemons too: exit code 124, ``timed_out``.
        ``on_output`` gets every byte as it comes; an exception of its own ends the command.

        Raises:
            InvalidSpec: an argument that cannot be honoured.
            ArgumentTooLong: more than the kernel's exec takes.
            SandboxFileNotFound: ``cwd`` does not exist.
            SandboxGone: the sandbox ended.
        """
        timeout = self.spec.limits.timeout_s if timeout_s is None else timeout_s
        check_seconds("timeout_s", timeout)
        request = self._request(
            command, cwd, env, output_bytes, max(1, round(timeout * 1000)), on_output, 0, stdin
        )
        channel, call = self._call(output_bytes, on_output)
        try:
            if stdin:
                await channel.stream(wire.STDIN, call, stdin)
            channel.send(wire.RUN, call, request)
            overdue = asyncio.get_running_loop().call_later(timeout, channel.hurry, call)
            try:
                last = await self._guarded(channel, call, timeout + GUARD_S)
            finally:
                overdue.cancel()
        except SandboxFileError as error:
            if error.errno == _E2BIG:
                raise ArgumentTooLong(
                    f"command and env together exceed what exec takes; {OTHER_WAY}"
                ) from None
            raise
        finally:
            if not call.done.done():
                channel.send(wire.CANCEL, call)
            channel.forget(call)
        return result_of(call, last)

    async def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        output_bytes: int | None = None,
        on_output: OnOutput | None = None,
    ) -> BubblewrapService:
        """Start a service: it has no time-out, and ends by itself, by ``stop``, or with the sandbox.

        Raises:
            InvalidSpec, ArgumentTooLong, SandboxFileNotFound, SandboxGone: as ``run``.
        """
        request = self._request(command, cwd, env, output_bytes, 0, on_output, wire.SERVICE, stdin)
        channel, call = self._call(output_bytes, on_output)
        call.started = asyncio.get_running_loop().create_future()
        try:
            if stdin:
                await channel.stream(wire.STDIN, call, stdin)
            channel.send(wire.RUN, call, request)
            either: set[asyncio.Future[Any]] = {call.started, call.done}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            channel.send(wire.CANCEL, call)
            channel.forget(call)
            raise
        service = BubblewrapService(channel, call)
        error = call.done.exception() if call.done.done() else None
        if error is not None:
            raise error
        return service

    async def quiet(self) -> None:
        """End every process inside, of services too. Files stay; commands that run end as killed (137).

        Raises:
            SandboxFileError: EBUSY, something could not be ended in a second.
            SandboxGone: the sandbox ended.
        """
        channel = self._live()
        call = channel.start(0)
        channel.send(wire.QUIET, call)
        await self._guarded(channel, call, GUARD_S)

    def _call(self, output_bytes: int | None, on_output: OnOutput | None) -> tuple[Channel, Call]:
        channel = self._live()
        call = channel.start(2 * self._kept(output_bytes) + 4096, command=True)
        call.on_output = on_output
        return channel, call

    def _kept(self, output_bytes: int | None) -> int:
        return self.spec.limits.output_bytes if output_bytes is None else output_bytes

    def _request(
        self,
        command: str | Sequence[str],
        cwd: str | None,
        env: Mapping[str, str] | None,
        output_bytes: int | None,
        timeout_ms: int,
        on_output: OnOutput | None,
        flags: int,
        stdin: bytes,
    ) -> bytes:
        limit = self._kept(output_bytes)
        if len(stdin) > (most := self.spec.limits.memory_bytes // 4):
            raise InvalidSpec(f"stdin: {len(stdin)} bytes, and a quarter of limits.memory_bytes is {most}")
        if limit < 1:
            raise InvalidSpec("output_bytes must be more than 0")
        argv = arguments_of(command)
        variables = variables_of({**self._env, **(env or {})})
        flags |= 0 if on_output is None else wire.LIVE
        numbers = [b"%d" % timeout_ms, b"%d" % limit]
        rest = [path_of(cwd or self.spec.workdir), b"%d" % flags, b"%d" % len(argv)]
        return wire.pack(*numbers, *rest, *argv, *variables)

    async def _guarded(self, channel: Channel, call: Call, patience_s: float) -> bytes:
        """The answer; an agent that stays silent too long is lost, and the sandbox with it."""
        loop = asyncio.get_running_loop()

        def check(seen: int) -> None:
            if channel.received != seen:  # this process was away, not the agent: its answers are coming in
                guards.append(loop.call_later(GUARD_S, check, channel.received))
                return
            self._gone = SandboxGone("the sandbox stopped answering")
            channel.end(self._gone)

        guards = [loop.call_later(patience_s, check, channel.received)]
        try:
            return await channel.answer(call, wire.CANCEL)
        finally:
            guards[-1].cancel()
