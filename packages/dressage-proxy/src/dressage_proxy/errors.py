"""The proxy's errors, and the only place that maps them to HTTP.

::

    ProxyError(Exception)
    ├── ConfigError(ValueError)      a flag or field of the configuration; the process does not start
    ├── RequestError                 the client's request; carries status, code, field and fix
    │   ├── NotFoundError            404: no such session or route
    │   ├── GoneError                410: the session is finished
    │   ├── ConflictError            409: the state does not allow it
    │   ├── UnauthorizedError        401: wrong or missing control key
    │   ├── ContextOverflowError     400: the prompt does not fit the context window
    │   │   └── EngineOverflowError  … or an engine's own
    │   ├── EngineRefusalError       400: an engine refuses what is asked; every other would, too
    │   ├── OverloadedError          429: more at once than is admitted; comes with Retry-After
    │   ├── VersionLimitError        409: the session has used up its switches of weight versions
    │   ├── HookError                503: a required hook failed; the request may be made again
    │   └── EngineError              503: the engine failed and nothing could be kept
    │       ├── PassingEngineError   it may pass: no token was accepted, the call may be made again
    │       │   └── StrangeEngineError   502: what answers there is no engine; another one may answer
    │       └── RouterError          the router does not name its workers
    └── ClientGoneError              the client left while its reply was made; nothing is sent
"""

from __future__ import annotations

from typing import Self


class ProxyError(Exception):
    """Root of this package's errors."""


class ConfigError(ProxyError, ValueError):
    """The configuration cannot work. The message names the flag and the fix."""


class RequestError(ProxyError):
    """A request that is refused. ``field`` is the JSON path at fault, ``fix`` what to do instead."""

    status = 400
    code = "invalid_request"

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        fix: str | None = None,
        code: str | None = None,
        status: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.fix = fix
        self.code = code or type(self).code
        self.status = status or type(self).status
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message,), self.__dict__


class NotFoundError(RequestError):
    """No such session or route."""

    status = 404
    code = "not_found"


class GoneError(RequestError):
    """The session was finalised or deleted."""

    status = 410
    code = "session_finished"


class ConflictError(RequestError):
    """The state does not allow the request."""

    status = 409
    code = "conflict"


class UnauthorizedError(RequestError):
    """The control key is missing or wrong."""

    status = 401
    code = "unauthorized"


class ContextOverflowError(RequestError):
    """The prompt of ``tokens`` leaves no room to sample in ``window``."""

    status = 400
    code = "context_length_exceeded"
    tokens = 0
    window: int | None = None

    @classmethod
    def of(cls, tokens: int, window: int) -> Self:
        """In the words that agents know an overflow by: those of both of OpenAI's APIs."""
        error = cls(
            f"This model's maximum context length is {window} tokens. However, your messages resulted in "
            f"{tokens} tokens. Please reduce the length of the messages. Your input exceeds the context "
            "window of this model.",
            field="messages",
        )
        error.tokens, error.window = tokens, window
        return error


class EngineOverflowError(ContextOverflowError):
    """What an engine says of it, whose window is smaller than the proxy's. ``excess``: by so many tokens less
    of the reply the call would fit; ``detail`` are its own words."""

    excess = 0
    detail = ""


class EngineRefusalError(RequestError):
    """An engine refuses what is asked. The message is fit for an agent, ``detail`` for the log."""

    code = "refused_by_engine"
    detail = ""


class EngineError(RequestError):
    """The engine could not be reached or answered with an error, after retries, with no token accepted.

    The message is what an agent reads: it names no address. ``detail`` is for the log.
    """

    status = 503
    code = "engine_unavailable"
    detail = ""


class PassingEngineError(EngineError):
    """A failure that may pass, of a call of which no token was accepted.

    ``delay_s`` is how long the engine asks to wait, if it does; ``unreachable`` says that no connection was
    made; ``lost`` that the engine may be sampling still, for nobody.
    """

    def __init__(
        self,
        message: str,
        *,
        detail: str = "",
        delay_s: float | None = None,
        unreachable: bool = False,
        lost: bool = False,
    ) -> None:
        super().__init__(message)
        self.detail = detail
        self.delay_s = delay_s
        self.unreachable = unreachable
        self.lost = lost

    def after(self, tries: int) -> EngineError:
        """What the agent is told once there were so many tries."""
        counted = f"{self.message} ({tries} tries)" if tries > 1 else self.message
        return EngineError(counted, code=self.code, status=self.status, retry_after_s=5)


class StrangeEngineError(PassingEngineError):
    """What answers is no engine, or lets nobody in: the address or the permission is wrong. That is not the
    agent's fault, and asking there again changes nothing."""

    status = 502
    code = "engine_misconfigured"


class RouterError(EngineError):
    """The router was not reached, or its answer names no workers."""

    code = "router_unavailable"


class OverloadedError(RequestError):
    """More is asked at once than the proxy admits, or it is draining. Nothing was done: ask again."""

    status = 429
    code = "overloaded"


class VersionLimitError(RequestError):
    """Sampling on would put more weight versions into the session than it may hold."""

    status = 409
    code = "version_limit_reached"


class HookError(RequestError):
    """A required tool hook failed."""

    status = 503
    code = "hook_failed"


class ClientGoneError(ProxyError):
    """The client closed its connection while the reply was being made."""
