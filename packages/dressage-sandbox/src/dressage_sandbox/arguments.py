"""A spec as bubblewrap's arguments. Deny by default: what is not named here is not inside."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from .egress import proxy_variables
from .images import Image
from .inside.wire import EGRESS_PORT
from .interpreter import Interpreter
from .protocol import Limits, SandboxSpec
from .shelf import Shelf

__all__ = [
    "AGENT",
    "DEFAULT_PATH",
    "Arguments",
    "base_env",
    "file_sizes",
    "rlimits",
    "sandbox_arguments",
]

AGENT = "/run/dressage/agent.pyc"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UID = 1000
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64")
_ETC = {
    "passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:1000:1000:agent:{home}:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "resolv.conf": "",
}
_ETC_OF_HOST = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime")
"""Parts of the host's /etc that programs under /usr need and that tell nothing of the host."""
_PAGE = 4096


@dataclass(slots=True)
class Arguments:
    """Arguments and the descriptors that they name. ``close`` gives the descriptors back."""

    words: list[str] = field(default_factory=list)
    fds: list[int] = field(default_factory=list)
    _stack: ExitStack = field(default_factory=ExitStack)

    def add(self, *words: str) -> None:
        """Append words."""
        self.words += words

    def own(self, fd: int) -> int:
        """Pass this descriptor on, and close it here afterwards."""
        self.fds.append(fd)
        self._stack.callback(os.close, fd)
        return fd

    def data(self, content: bytes, name: str = "data") -> str:
        """A descriptor (as text) from which ``content`` is read."""
        fd = self.own(os.memfd_create(name, os.MFD_CLOEXEC))
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
        return str(fd)

    def program(self, path: Path) -> str:
        """A path's descriptor as a path, for who may not walk to the path itself."""
        return f"/proc/self/fd/{self.own(os.open(path, os.O_PATH | os.O_CLOEXEC))}"

    def close(self) -> None:
        """Close every descriptor on this side."""
        self._stack.close()


def base_env(spec: SandboxSpec, interpreter: Interpreter) -> dict[str, str]:
    """The environment of every command: nothing of the host's, then the spec's own."""
    path = DEFAULT_PATH
    if interpreter.mounts and not interpreter.loader:  # the latter is for the agent alone
        path += f":{PurePosixPath(interpreter.path).parent}"
    own = {"PATH": path, "HOME": spec.workdir, "USER": "agent", "LANG": "C.UTF-8", "TMPDIR": "/tmp"}
    proxy = proxy_variables(EGRESS_PORT) if spec.egress else {}
    return {**own, **_library_path(interpreter), **proxy, **spec.env}


def _library_path(interpreter: Interpreter) -> dict[str, str]:
    """Where a base interpreter built as a shared library finds that; its own paths are of the host."""
    libraries = PurePosixPath(interpreter.path).parent.parent / "lib"
    return {"LD_LIBRARY_PATH": str(libraries)} if interpreter.mounts and not interpreter.loader else {}


def sandbox_arguments(
    spec: SandboxSpec,
    interpreter: Interpreter,
    seccomp: bytes | None,
    shelf: Shelf,
    image: Image | None = None,
) -> Arguments:
    """Everything but the program's name and the agent's command line; they reach bubblewrap by descriptor.

    ``shelf`` says where bubblewrap finds each mount's source.
    """
    places = shelf.places
    arguments = Arguments()
    try:
        arguments.add(
            "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",
            "--unshare-cgroup", "--disable-userns", "--new-session", "--as-pid-1",
            "--uid", str(UID), "--gid", str(UID), "--hostname", "sandbox", "--cap-drop", "ALL", "--clearenv",
        )  # fmt: skip
        if spec.root is None or image is None:
            _system(arguments)
            _etc(arguments, spec)
        else:
            _image(arguments, spec, image, places[spec.root])
        _interpreter(arguments, interpreter, places)
        _private(arguments, spec, shelf, image)
        if seccomp is not None:
            arguments.add("--seccomp", arguments.data(seccomp))
        arguments.add("--chdir", "/")
    except BaseException:
        arguments.close()
        raise
    return arguments


def _system(arguments: Arguments) -> None:
    arguments.add("--ro-bind", "/usr", "/usr")
    for name in _SYSTEM:
        path = Path("/", name)
        if path.is_symlink():
            arguments.add("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            arguments.add("--ro-bind", str(path), str(path))


def _image(arguments: Arguments, spec: SandboxSpec, image: Image, place: str) -> None:
    for name in image.folders:
        arguments.add("--ro-bind", f"{place}/{name}", f"/{name}")
    for name, target in image.links:
        arguments.add("--symlink", target, f"/{name}")
    if "etc" not in image.folders:
        _etc(arguments, spec)


def _etc(arguments: Arguments, spec: SandboxSpec) -> None:
    arguments.add("--dir", "/etc")
    for name, text in _ETC.items():
        content = text.replace("{home}", spec.workdir).encode()
        arguments.add("--perms", "0644", "--file", arguments.data(content, name), f"/etc/{name}")
    for name in _ETC_OF_HOST:
        arguments.add("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")


def _interpreter(arguments: Arguments, interpreter: Interpreter, places: Mapping[Path, str]) -> None:
    arguments.add("--dir", "/run/dressage")
    arguments.add("--perms", "0444", "--file", arguments.data(interpreter.bytecode, "agent"), AGENT)
    for source, target in interpreter.mounts:
        arguments.add("--ro-bind", places[source], target)
    for target in interpreter.hidden:
        arguments.add("--tmpfs", target, "--remount-ro", target)
    for name, value in _library_path(interpreter).items():
        arguments.add("--setenv", name, value)


def file_sizes(limits: Limits) -> tuple[int, int, int]:
    """Bytes of the work folder, /tmp and /dev/shm.

    Pages of these count as memory and outlive every process: if they could use all of it up, the next command
    would find none, and the sandbox itself would be what the kernel ends.
    """
    left, sizes = limits.memory_bytes * 3 // 4, []
    for most in (3 / 4, 2 / 3, 1.0):  # of what is left
        sizes.append(min(limits.disk_bytes, int(left * most)) // _PAGE * _PAGE)
        left -= sizes[-1]
    return sizes[0], sizes[1], sizes[2]


def _private(arguments: Arguments, spec: SandboxSpec, shelf: Shelf, image: Image | None) -> None:
    workdir, tmp, shared = (str(size) for size in file_sizes(spec.limits))
    arguments.add("--proc", "/proc", "--dev", "/dev")
    arguments.add("--perms", "1777", "--size", shared, "--tmpfs", "/dev/shm", "--remount-ro", "/dev")
    arguments.add("--perms", "1777", "--size", tmp, "--tmpfs", "/tmp")
    if image is None or "var" not in image.folders:
        arguments.add("--dir", "/var", "--symlink", "/tmp", "/var/tmp")
    if shelf.lower:
        arguments.add("--overlay-src", shelf.lower, "--overlay", *shelf.upper, spec.workdir)
    else:
        arguments.add("--perms", "0755", "--size", workdir, "--tmpfs", spec.workdir)
    for mount in spec.mounts:
        arguments.add("--ro-bind", shelf.places[mount.source], mount.target)
    # Last: the root holds every mount point, and has no size limit of its own.
    arguments.add("--remount-ro", "/")


def rlimits(limits: Limits, *, memory: bool, pids: bool) -> dict[int, int]:
    """Resource limits of each command; memory and processes only where no control group has them.

    Memory is RLIMIT_DATA and not RLIMIT_AS: programs that reserve address space without using it (node, Go,
    anything with a JIT) would not start under the latter.
    """
    values = {
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_FSIZE: limits.disk_bytes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 64 << 10,
    }
    if memory:
        values[resource.RLIMIT_DATA] = limits.memory_bytes
    if pids:
        values[resource.RLIMIT_NPROC] = limits.pids
    hard = {which: resource.getrlimit(which)[1] for which in values}
    return {w: v if hard[w] == resource.RLIM_INFINITY else min(v, hard[w]) for w, v in values.items()}
