"""A spec as the body of the engine's create call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..arguments import file_sizes
from ..protocol import SandboxSpec
from .config import ContainerConfig

__all__ = ["container_body"]

_IDLE = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"


def container_body(config: ContainerConfig, spec: SandboxSpec, labels: Mapping[str, str]) -> dict[str, Any]:
    """Deny by default: what is not named here is not inside."""
    limits, ids = spec.limits, f"uid={config.uid},gid={config.uid}"
    tmpfs = "rw,nosuid,nodev,exec,size="
    workdir, tmp, shared = file_sizes(limits)
    host: dict[str, Any] = {
        "NetworkMode": "none" if config.network is None or spec.relay is None else config.network,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "Privileged": False,
        "ReadonlyRootfs": True,
        "IpcMode": "private",
        "Init": True,
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,
        "PidsLimit": limits.pids + 32,
        "Ulimits": [
            {"Name": "nofile", "Soft": limits.open_files, "Hard": limits.open_files},
            {"Name": "core", "Soft": 0, "Hard": 0},
        ],
        "Tmpfs": {
            "/tmp": f"{tmpfs}{tmp},mode=1777",
            spec.workdir: f"{tmpfs}{workdir},mode=0755,{ids}",
        },
        "ShmSize": shared,
        "Binds": [f"{mount.source.resolve()}:{mount.target}:ro" for mount in spec.mounts],
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "none"},
    }
    if limits.cpus is not None:
        host["NanoCpus"] = round(limits.cpus * 1e9)
    if config.runtime is not None:
        host["Runtime"] = config.runtime
    return {
        "Image": config.image,
        "Entrypoint": ["/bin/sh"],
        "Cmd": ["-c", _IDLE],
        "User": f"{config.uid}:{config.uid}",
        "WorkingDir": spec.workdir,
        "Hostname": "sandbox",
        "Labels": dict(labels),
        "StopTimeout": 1,
        "HostConfig": host,
    }
