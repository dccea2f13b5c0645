"""The one module that imports the SDK: each call of it that is made, and what its errors mean."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import httpx
from e2b import AsyncSandbox, CommandExitException, SandboxQuery
from e2b.exceptions import (
    AuthenticationException,
    InvalidArgumentException,
    NotEnoughSpaceException,
    NotFoundException,
    RateLimitException,
    SandboxException,
    SandboxNotFoundException,
    SandboxNotRunningException,
    ServiceBusyException,
)

from ..errors import InvalidSpec, ProviderUnavailable, SandboxError, SandboxGone
from .config import E2BConfig
from .retry import attempts

__all__ = ["Cloud", "Handle"]

T = TypeVar("T")
_STATUS: tuple[tuple[type[BaseException], int], ...] = (
    (RateLimitException, 429),
    (ServiceBusyException, 503),
    (AuthenticationException, 401),
    (NotEnoughSpaceException, 413),  # 507 by number, but no other answer is to be hoped for
    (NotFoundException, 404),
    (InvalidArgumentException, 400),
)
_UNREACHABLE = (SandboxException, httpx.HTTPError, OSError)
_LEAST_S = 1


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an error of the SDK stands for; None where there was no answer."""
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    return error.status_code if isinstance(error, SandboxException) else None


class Cloud:
    """An account."""

    def __init__(self, config: E2BConfig) -> None:
        self.config = config
        # Retries are ours alone: the SDK's own would multiply them, and take no 500.
        self._options: dict[str, Any] = {"retries": 0, "request_timeout": config.request_timeout_s}
        for name in ("api_key", "domain", "api_url", "sandbox_url"):
            if (value := getattr(config, name)) is not None:
                self._options[name] = value

    async def _again(self, call: Callable[[], Awaitable[T]]) -> T:
        return await attempts(self.config, call, status_of)

    async def make(
        self, timeout_s: float, metadata: dict[str, str], key: str, network: dict[str, Any] | None
    ) -> Handle:
        """One attempt of a create. Raises the SDK's own errors: whether it may have been made all the same is
        for the caller to find out."""
        options: dict[str, Any] = {"allow_internet_access": False}
        if network is not None:
            options = {"network": network}
        made = await AsyncSandbox.create(
            template=self.config.template,
            timeout=_whole(timeout_s),
            metadata=metadata,
            idempotency_key=key,
            **options,
            **self._options,
        )
        return Handle(made, self)

    async def find(self, metadata: Mapping[str, str]) -> list[tuple[str, dict[str, str]]]:
        """Id and metadata of every sandbox, running or paused, that carries this metadata."""

        async def pages() -> list[tuple[str, dict[str, str]]]:
            found = []
            pages = AsyncSandbox.list(query=SandboxQuery(metadata=dict(metadata)), **self._options)
            while pages.has_next:
                found += [(info.sandbox_id, dict(info.metadata)) for info in await pages.next_items()]
            return found

        try:
            return await self._again(pages)
        except Exception as error:
            raise self.told(error, "the sandboxes could not be listed") from error

    async def connect(self, sandbox_id: str, timeout_s: float) -> Handle:
        """A sandbox that exists; a paused one is resumed."""

        async def connect() -> AsyncSandbox:
            return await AsyncSandbox.connect(sandbox_id, timeout=_whole(timeout_s), **self._options)

        try:
            return Handle(await self._again(connect), self)
        except Exception as error:
            raise self.told(error, f"sandbox {sandbox_id} could not be reached") from error

    async def kill(self, sandbox_id: str) -> None:
        """End a sandbox; one that is not there has ended."""
        await self.told_call(
            lambda: AsyncSandbox.kill(sandbox_id, **self._options), f"sandbox {sandbox_id} could not be ended"
        )

    async def pause(self, sandbox_id: str) -> None:
        """Keep its memory and files, and stop it."""
        await self.told_call(
            lambda: AsyncSandbox.pause(sandbox_id, **self._options), f"sandbox {sandbox_id} was not paused"
        )

    async def set_timeout(self, sandbox_id: str, timeout_s: float) -> None:
        """Let it exist ``timeout_s`` seconds from now."""
        await self.told_call(
            lambda: AsyncSandbox.set_timeout(sandbox_id, timeout=_whole(timeout_s), **self._options),
            f"the time-out of sandbox {sandbox_id} was not set",
        )

    async def told_call(self, call: Callable[[], Awaitable[T]], what: str) -> T:
        """``call``'s result, tried again where it was busy; its failure as an error of this package."""
        try:
            return await self._again(call)
        except Exception as error:
            raise self.told(error, what) from error

    def told(self, error: Exception, what: str) -> Exception:
        """The error of this package that an error of the SDK is."""
        text = f"{what}: {error}"
        if isinstance(error, SandboxNotRunningException | SandboxNotFoundException):
            return SandboxGone(text)
        status = status_of(error)
        if status == 401:
            return ProviderUnavailable(f"{text}; give an API key of this account in E2BConfig.api_key")
        if status == 400:
            return InvalidSpec(text)
        return SandboxError(text) if status is not None or isinstance(error, _UNREACHABLE) else error


class Handle:
    """One sandbox as the SDK reaches it. Satisfies ``remote.Transport``."""

    def __init__(self, sandbox: AsyncSandbox, cloud: Cloud) -> None:
        self._sandbox = sandbox
        self._cloud = cloud

    @property
    def id(self) -> str:
        """As E2B numbers it."""
        return self._sandbox.sandbox_id

    def host_of(self, port: int) -> tuple[str, str | None]:
        """The public name of a port, and the token that its requests must carry."""
        return self._sandbox.get_host(port), self._sandbox.traffic_access_token

    async def run(self, script: str, *, timeout_s: float | None, as_root: bool = False) -> bytes:
        """See ``remote.Transport``. Only a start that was refused by rate is tried again: it ran nothing."""
        # The SDK wraps every line in a login shell, which resets PATH; what the process was started with is
        # still in its first environment.
        line = f"export DRESSAGE_PATH=$(tr '\\0' '\\n' </proc/$$/environ | sed -n 's/^PATH=//p')\n{script}"
        pieces: list[str] = []

        async def start() -> Any:
            return await self._sandbox.commands.run(
                line,
                background=True,
                user="root" if as_root else self._cloud.config.user,
                on_stdout=pieces.append,
                timeout=timeout_s or 0,
                retain_output=False,
            )

        try:
            handle = await attempts(
                self._cloud.config, start, lambda e: 429 if isinstance(e, RateLimitException) else None
            )
            await self._ended(handle)
        except Exception as error:
            raise self._cloud.told(error, f"sandbox {self.id} did not answer") from error
        return "".join(pieces).encode()

    @staticmethod
    async def _ended(handle: Any) -> None:
        try:
            await handle.wait()
        except CommandExitException:
            return  # a result and no failure
        except asyncio.CancelledError:
            await handle.disconnect()
            raise

    async def put(self, path: str, data: bytes) -> None:
        """See ``remote.Transport``."""
        user = self._cloud.config.user
        await self._cloud.told_call(
            lambda: self._sandbox.files.write(path, data, user=user, use_octet_stream=True),
            f"a file could not be brought to sandbox {self.id}",
        )

    async def end(self) -> None:
        """See ``remote.Transport``."""
        await self._cloud.kill(self.id)


def _whole(seconds: float) -> int:
    return max(_LEAST_S, round(seconds))
