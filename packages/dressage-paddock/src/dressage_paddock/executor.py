"""A sandbox as the executor of a blackbox session: the state machine outside, the program inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dressage_blackbox_server import ExecResult, ExecutorError, LaunchError
from dressage_sandbox.errors import InvalidSpec, SandboxError, SandboxFileError
from dressage_sandbox.protocol import Sandbox


class SandboxExecutor:
    """Runs the agent's program in ``sandbox``. Satisfies ``dressage_blackbox_server.Executor``."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.refused_inside = False
        """Whether something could not be done for what lies inside: a folder in a file's place, no room."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        stdin: bytes = b"",
        timeout_s: float,
        output_bytes: int,
    ) -> ExecResult:
        """Run ``argv`` inside; see ``Executor``. A sandbox that died is :class:`ExecutorError`."""
        try:
            result = await self._sandbox.run(
                argv, cwd=cwd, env=env, stdin=stdin, timeout_s=timeout_s, output_bytes=output_bytes
            )
        except (InvalidSpec, SandboxFileError) as error:
            self.refused_inside |= isinstance(error, SandboxFileError)
            raise LaunchError(f"{argv[0]!r} could not be started in the sandbox: {error}") from error
        except SandboxError as error:
            raise ExecutorError(f"the sandbox failed: {error}") from error
        return ExecResult(result.exit_code, result.stdout, result.stderr, result.timed_out)

    async def write(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        """Write a file inside; see ``Executor``."""
        try:
            await self._sandbox.write(path, data, mode=mode)
        except SandboxError as error:
            self.refused_inside |= isinstance(error, SandboxFileError)
            raise ExecutorError(f"{path} could not be written in the sandbox: {error}") from error
