"""A recording model proxy: every agent API in front of SGLang, with the evidence of every token."""

from dressage_proxy.app import Proxy, running
from dressage_proxy.client import ControlError, Finalized, OpenSession, Paused, ProxyClient
from dressage_proxy.config import Limits, ProxyConfig, Sampling
from dressage_proxy.errors import (
    ConfigError,
    ConflictError,
    ContextOverflowError,
    EngineError,
    GoneError,
    NotFoundError,
    ProxyError,
    RequestError,
    UnauthorizedError,
)

__all__ = [
    "ConfigError",
    "ConflictError",
    "ContextOverflowError",
    "ControlError",
    "EngineError",
    "Finalized",
    "GoneError",
    "Limits",
    "NotFoundError",
    "OpenSession",
    "Paused",
    "Proxy",
    "ProxyClient",
    "ProxyConfig",
    "ProxyError",
    "RequestError",
    "Sampling",
    "UnauthorizedError",
    "running",
]
