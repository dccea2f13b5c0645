"""Whether sandboxes can be made here, what is enforced, and what to change where they cannot."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from .cgroups import Cgroups
from .errors import ProviderUnavailable, UserNamespacesForbidden
from .launch import Launcher

__all__ = ["Capabilities", "check_machine", "describe"]

_UCOUNT_NPROC = (5, 14)
"""Since this kernel RLIMIT_NPROC counts per user namespace; before, it counted the whole host user."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What holds a sandbox on this machine. ``memory``, ``pids`` and ``cpu`` name the mechanism or "none"."""

    bubblewrap: str
    bubblewrap_path: str
    python: str
    memory: str
    """cgroup-v1, cgroup-v2, or rlimit-data: the private memory of each process alone, not their sum."""
    pids: str
    cpu: str
    seccomp: bool
    drops_root: bool
    """The owner is root, and each sandbox runs as an unprivileged uid of its own on the host."""
    disk: str = "tmpfs"
    network: str = "none, the model relay, or an allow-list through a proxy"
    root_workdir: str = "overlay"
    """How the work folder of a spec with a root begins: as an overlay where the file system takes part."""


def check_machine(launcher: Launcher) -> None:
    """Make the emptiest sandbox.

    Raises:
        UserNamespacesForbidden: the kernel or a container forbids it; says how to allow it.
        ProviderUnavailable: it failed otherwise, with what bubblewrap said.
    """
    status, said = launcher.check()
    if status == 0 and launcher.stuck_as_root:
        # Files of /proc/sys obey the machine's root from within any namespace: one would be enough to escape.
        raise ProviderUnavailable(
            "this process is root, in a user namespace without another uid to give to sandboxes; "
            "run it as another user, or map more uids"
        )
    if status == 0:
        return
    reasons = _reasons()
    about_namespaces = any(word in said for word in ("namespace", "uid map", "setting up uid", "clone"))
    if about_namespaces or reasons:
        fix = "; ".join(reasons) or (
            "allow them for this user (in a container: --security-opt seccomp=unconfined, or a profile that "
            "allows clone and unshare)"
        )
        raise UserNamespacesForbidden(
            f"user namespaces are not allowed here ({said or status}), and nothing runs without them. "
            f"To allow them: {fix}"
        )
    if "proc" in said:
        said += " (a container that masks parts of /proc forbids a fresh one: run it with an unmasked /proc)"
    raise ProviderUnavailable(f"bubblewrap cannot make a sandbox here: {said or f'status {status}'}")


def describe(launcher: Launcher, cgroups: Cgroups, python: str, seccomp: bool) -> Capabilities:
    """The report for this machine."""
    group = f"cgroup-v{cgroups.version}"
    if cgroups.enforces("pids"):
        pids = group
    else:
        pids = "rlimit-nproc" if nproc_is_per_sandbox(launcher.drops_root) else "none"
    return Capabilities(
        bubblewrap=launcher.bubblewrap.version_text,
        bubblewrap_path=str(launcher.bubblewrap.path),
        python=python,
        memory=group if cgroups.enforces("memory") else "rlimit-data",
        pids=pids,
        cpu=group if cgroups.enforces("cpu") else "none",
        seccomp=seccomp,
        drops_root=launcher.drops_root,
        root_workdir="overlay by ID-mapped mounts, or private copy" if launcher.drops_root else "overlay",
    )


def nproc_is_per_sandbox(own_uid: bool) -> bool:
    """Whether RLIMIT_NPROC counts one sandbox alone: by its user namespace, or by a host uid of its own."""
    release = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2] if part.isdigit())
    return own_uid or (release >= _UCOUNT_NPROC and os.geteuid() != 0)


def _reasons() -> list[str]:
    found = []
    if _sysctl("kernel/unprivileged_userns_clone") == "0":
        found.append("sysctl -w kernel.unprivileged_userns_clone=1")
    if _sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1":
        found.append(
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile for bwrap "
            "with 'userns,'"
        )
    if _sysctl("user/max_user_namespaces") == "0":
        found.append("sysctl -w user.max_user_namespaces=15000")
    return found


def _sysctl(name: str) -> str | None:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return None
