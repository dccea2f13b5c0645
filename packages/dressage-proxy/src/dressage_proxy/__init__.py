"""A recording model proxy: every agent API in front of SGLang, with the evidence of every token."""

from dressage_proxy.app import Proxy
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
    "EngineError",
    "GoneError",
    "Limits",
    "NotFoundError",
    "Proxy",
    "ProxyConfig",
    "ProxyError",
    "RequestError",
    "Sampling",
    "UnauthorizedError",
]
