"""A recording model proxy: every agent API in front of SGLang, with the evidence of every token."""

from dressage_proxy.app import Proxy, running
from dressage_proxy.client import ControlError, Finalized, OpenSession, Paused, ProxyClient
from dressage_proxy.config import Limits, ProxyConfig, Sampling
from dressage_proxy.engine.choose import Choice
from dressage_proxy.engine.experts import ExpertsShape
from dressage_proxy.errors import (
    ConfigError,
    ConflictError,
    ContextOverflowError,
    EngineError,
    GoneError,
    HookError,
    NotFoundError,
    OverloadedError,
    ProxyError,
    RequestError,
    RouterError,
    UnauthorizedError,
    VersionLimitError,
)
from dressage_proxy.hooks import ToolEvent, ToolHook

__all__ = [
    "Choice",
    "ConfigError",
    "ConflictError",
    "ContextOverflowError",
    "ControlError",
    "EngineError",
    "ExpertsShape",
    "Finalized",
    "GoneError",
    "HookError",
    "Limits",
    "NotFoundError",
    "OpenSession",
    "OverloadedError",
    "Paused",
    "Proxy",
    "ProxyClient",
    "ProxyConfig",
    "ProxyError",
    "RequestError",
    "RouterError",
    "Sampling",
    "ToolEvent",
    "ToolHook",
    "UnauthorizedError",
    "VersionLimitError",
    "running",
]
