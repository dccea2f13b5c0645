"""Run untrusted agent code in bubblewrap sandboxes that leave nothing behind."""

from .archive import ArtifactArchive
from .errors import (
    ArgumentTooLong,
    BubblewrapMissing,
    FileTooLarge,
    Full,
    InvalidSpec,
    LimitNotEnforceable,
    NotARegularFile,
    OutOfMemory,
    ProviderUnavailable,
    SandboxError,
    SandboxFileError,
    SandboxFileNotFound,
    SandboxGone,
    SandboxStartFailed,
    Unsupported,
    UserNamespacesForbidden,
)
from .heartbeat import kept_alive
from .pool import PooledProvider
from .probe import Capabilities
from .protocol import (
    DirEntry,
    Endpoint,
    Feature,
    Limits,
    Mount,
    OnOutput,
    RunResult,
    Sandbox,
    SandboxProvider,
    SandboxSpec,
    Service,
    Snapshot,
    Status,
)
from .provider import BubblewrapProvider
from .sandbox import BubblewrapSandbox

__all__ = [
    "ArgumentTooLong",
    "ArtifactArchive",
    "BubblewrapMissing",
    "BubblewrapProvider",
    "BubblewrapSandbox",
    "Capabilities",
    "DirEntry",
    "Endpoint",
    "Feature",
    "FileTooLarge",
    "Full",
    "InvalidSpec",
    "LimitNotEnforceable",
    "Limits",
    "Mount",
    "NotARegularFile",
    "OnOutput",
    "OutOfMemory",
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
    "Service",
    "Snapshot",
    "Status",
    "Unsupported",
    "UserNamespacesForbidden",
    "kept_alive",
]
