"""Providers by name: those of this package, and any that another one offers.

A provider is offered by an entry point of the group ``dressage_sandbox.providers`` whose object, called
without arguments, is a ``SandboxProvider``::

    [project.entry-points."dressage_sandbox.providers"]
    mine = "my_package:MyProvider"
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from .errors import InvalidSpec, ProviderUnavailable
from .protocol import SandboxProvider

__all__ = ["GROUP", "find_provider", "provider_names"]

GROUP = "dressage_sandbox.providers"


def provider_names() -> list[str]:
    """Every name that ``find_provider`` takes here, sorted."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def find_provider(name: str) -> Callable[..., SandboxProvider]:
    """What makes the provider of this name: call it, with settings of its own or without.

    Raises:
        InvalidSpec: there is none of this name, or two packages offer one.
        ProviderUnavailable: it is offered and cannot be imported.
    """
    points: set[EntryPoint] = {point for point in entry_points(group=GROUP) if point.name == name}
    if not points:
        raise InvalidSpec(f"provider {name!r} is not known; known: {', '.join(provider_names())}")
    if len({point.value for point in points}) > 1:
        offers = ", ".join(sorted(point.value for point in points))
        raise InvalidSpec(f"provider {name!r} is offered more than once: {offers}; uninstall one")
    try:
        made: Any = points.pop().load()
    except (ImportError, AttributeError) as error:
        raise ProviderUnavailable(f"provider {name!r} cannot be imported: {error}") from error
    if not callable(made):
        raise ProviderUnavailable(f"provider {name!r} is {made!r}, which makes no provider")
    factory: Callable[..., SandboxProvider] = made
    return factory
