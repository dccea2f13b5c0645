"""Run untrusted agent code in bubblewrap sandboxes that leave nothing behind."""

from .errors import (
    ArgumentTooLong,
    BubblewrapMissing,
    InvalidSpec,
    LimitNotEnforceable,
    NotARegularFile,
    ProviderUnavailable,
    SandboxError,
    SandboxFileError,
    SandboxFileNotFound,
    SandboxGone,
    SandboxStartFailed,
    UserNamespacesForbidden,
)
from .pool import PooledProvider
from .probe import Capabilities
from .protocol import DirEntry, Limits, Mount, RunResult, Sandbox, SandboxProvider, SandboxSpec
from .provider import BubblewrapProvider
from .sandbox import BubblewrapSandbox

__all__ = [
    "ArgumentTooLong",
    "BubblewrapMissing",
    "BubblewrapProvider",
    "BubblewrapSandbox",
    "Capabilities",
    "DirEntry",
    "InvalidSpec",
    "LimitNotEnforceable",
    "Limits",
    "Mount",
    "NotARegularFile",
    "PooledProvider",
    "ProviderUnavailable",
    "RunResult",
    "Sandbox",
    "SandboxError",
    "SandboxFileError",
    "SandboxFileNotFound",
    "SandboxGone",
    "SandboxProvider",
    "SandboxSpec",
    "SandboxStartFailed",
    "UserNamespacesForbidden",
]
