from __future__ import annotations

import subprocess
import sys

import dressage_sandbox


def test_the_public_names() -> None:
    assert sorted(dressage_sandbox.__all__) == [
        "ArgumentTooLong", "ArtifactArchive", "BubblewrapMissing", "BubblewrapProvider",
        "BubblewrapSandbox", "Capabilities", "DirEntry", "Endpoint", "Feature", "FileTooLarge", "Full",
        "InvalidSpec", "LimitNotEnforceable", "Limits", "Mount", "NotARegularFile", "OnOutput", "OutOfMemory",
        "PooledProvider", "ProviderUnavailable", "RunResult", "Sandbox", "SandboxError", "SandboxFileError",
        "SandboxFileNotFound", "SandboxGone", "SandboxProvider", "SandboxSpec", "SandboxStartFailed",
        "Service", "Snapshot", "Status", "Unsupported", "UserNamespacesForbidden", "kept_alive",
    ]  # fmt: skip
    assert all(hasattr(dressage_sandbox, name) for name in dressage_sandbox.__all__)


def test_the_import_is_light() -> None:
    heavy = "torch transformers ray numpy pydantic httpx"
    code = f"import sys, dressage_sandbox; print([m for m in '{heavy}'.split() if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
