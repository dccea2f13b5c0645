"""What a spec may ask for. What cannot be honoured is refused by the field's name, before all."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path, PurePosixPath

from .egress import AllowList
from .errors import InvalidSpec, Unsupported
from .protocol import Feature, Limits, Mount, SandboxSpec
from .relay import parse_address

__all__ = ["check_features", "check_spec", "check_variable", "raw_text"]

_OF_A_ROOT = ("proc", "sys", "dev", "run", "bin", "etc")
_TAKEN = (*_OF_A_ROOT, "sbin", "lib", "lib32", "lib64", "usr", "opt/dressage", "var/tmp")
_PATH_MAX_TEXT = 4096
_RANGES = {
    "memory_bytes": (16 << 20, 1 << 50),
    "pids": (4, 1 << 22),
    "open_files": (16, 1 << 30),
    "disk_bytes": (1 << 20, 1 << 60),
    "output_bytes": (1, 1 << 40),
}
_CPUS = (0.01, 65536)
"""What the kernel takes as a quota of a tenth of a second."""
_KINDS: dict[str, tuple[type, ...]] = {
    "mounts": (tuple, list), "env": (Mapping,), "workdir": (str,), "limits": (Limits,),
    "relay": (str, type(None)), "egress": (tuple, list), "root": (Path, type(None)),
    "snapshot": (str, type(None)), "owner": (str,),
}  # fmt: skip


def check_spec(spec: SandboxSpec) -> None:
    """Refuse what cannot be honoured.

    Raises:
        InvalidSpec: names the field and the fix.
    """
    for name, kinds in _KINDS.items():
        _check_kind(name, getattr(spec, name), kinds)
    _check_limits(spec.limits)
    _check_seconds("ttl_s", spec.ttl_s, math.inf)
    _check_inside("workdir", spec.workdir, _TAKEN if spec.root is None else _OF_A_ROOT)
    _check_mounts(spec)
    for key, value in spec.env.items():
        check_variable(key, value)
    if spec.relay is not None:
        parse_address(spec.relay)
    for entry in spec.egress:
        _check_kind("egress", entry, (str,))
    AllowList.parse(spec.egress)


def check_features(spec: SandboxSpec, features: frozenset[Feature], provider: str) -> None:
    """Refuse what a provider with these features would have to ignore. For providers of any kind.

    Raises:
        Unsupported: names the field.
    """
    asked = {
        Feature.RELAY: ("relay", spec.relay is not None),
        Feature.EGRESS: ("egress", bool(spec.egress)),
        Feature.MOUNTS: ("mounts", bool(spec.mounts)),
        Feature.ROOT: ("root", spec.root is not None),
        Feature.SNAPSHOTS: ("snapshot", spec.snapshot is not None),
    }
    for feature, (field_name, wanted) in asked.items():
        if wanted and feature not in features:
            raise Unsupported(f"{field_name}: {provider} cannot honour it; leave it out")


def check_variable(key: str, value: str) -> None:
    """Refuse an environment variable that no program could be given.

    Raises:
        InvalidSpec: names the variable.
    """
    if not isinstance(key, str) or not isinstance(value, str):
        raise InvalidSpec(f"env {key!r} is {type(value).__name__}: names and values are text")
    if not key or "=" in key or "\0" in key or "\0" in value:
        raise InvalidSpec(f"env {key!r}: a name has no '=' and neither part has a NUL byte")
    for part in (key, value):
        raw_text(f"env {key!r}", part)


def raw_text(name: str, text: str | os.PathLike[str]) -> bytes:
    """A text's bytes, as programs and file systems take them.

    Raises:
        TypeError: it is no text.
        InvalidSpec: it has no bytes: half of a surrogate pair, which JSON can spell.
    """
    try:
        return os.fsencode(text)
    except TypeError:
        raise TypeError(f"{name} is {type(text).__name__}: give text") from None
    except UnicodeEncodeError:
        raise InvalidSpec(f"{name} holds a lone surrogate: give valid Unicode") from None


def _check_kind(name: str, value: object, kinds: tuple[type, ...]) -> None:
    if not isinstance(value, kinds):
        named = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        raise InvalidSpec(f"{name} is {type(value).__name__}: give {named}")


def _check_limits(limits: Limits) -> None:
    for name, (least, most) in _RANGES.items():
        value: object = getattr(limits, name)
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise InvalidSpec(f"limits.{name}={value!r}: must be a whole number, an int")
        if not least <= int(value) <= most:
            raise InvalidSpec(f"limits.{name}={value}: must be at least {least}, and at most {most}")
    _check_seconds("limits.timeout_s", limits.timeout_s, math.nextafter(math.inf, 0))
    least_cpus, most_cpus = _CPUS
    if limits.cpus is not None and not least_cpus <= _number(limits.cpus) <= most_cpus:
        raise InvalidSpec(
            f"limits.cpus={limits.cpus!r}: must be from {least_cpus} to {most_cpus}, or None for no limit"
        )


def _check_seconds(name: str, value: object, most: float) -> None:
    if not 0 < _number(value) <= most:
        finite = "" if most == math.inf else ", and finite"
        raise InvalidSpec(f"{name}={value!r}: must be more than 0 seconds{finite}")


def _number(value: object) -> float:
    """Not a number where it is none."""
    return float(value) if isinstance(value, Real) else math.nan


def _check_mounts(spec: SandboxSpec) -> None:
    targets: set[PurePosixPath] = {PurePosixPath(spec.workdir)}
    for mount in spec.mounts:
        _check_kind("mounts", mount, (Mount,))
        _check_kind("mounts source", mount.source, (Path,))
        _check_kind(f"mounts target of {mount.source}", mount.target, (str,))
        _check_inside(f"mounts target of {mount.source}", mount.target)
        if not mount.source.exists():
            raise InvalidSpec(f"mounts: {mount.source} does not exist on this host")
        if (target := PurePosixPath(mount.target)) in targets:
            raise InvalidSpec(f"mounts: {mount.target} is the work folder's, or another mount's, target too")
        targets.add(target)


def _check_inside(name: str, path: str, taken: tuple[str, ...] = _TAKEN) -> None:
    pure = PurePosixPath(path)
    raw = raw_text(name, path)
    absolute = pure.is_absolute() and not path.startswith("//")
    if not absolute or ".." in pure.parts or b"\0" in raw or len(raw) > _PATH_MAX_TEXT:
        raise InvalidSpec(f"{name}: {path!r} must be an absolute path without '..'")
    if pure in (PurePosixPath("/"), PurePosixPath("/tmp")) or any(
        pure.is_relative_to(PurePosixPath("/", each)) for each in taken
    ):
        raise InvalidSpec(f"{name}: {path!r} is a place that the sandbox makes itself; choose another")
