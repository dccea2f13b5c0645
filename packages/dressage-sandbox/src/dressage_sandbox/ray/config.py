"""How sandboxes are spread over a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import InvalidSpec
from ..pool import PooledProvider
from ..protocol import Feature, SandboxProvider, SandboxSpec
from ..provider import BubblewrapProvider

__all__ = ["NodePool", "RayConfig"]

_LOCAL = frozenset({Feature.STREAMS, Feature.EXPOSE})
"""What does not cross nodes: callbacks, and ports of a node's loopback."""


@dataclass(frozen=True, slots=True)
class NodePool:
    """Makes a node's provider that keeps ``size`` fresh sandboxes ready: for ``RayConfig.make``."""

    spec: SandboxSpec
    size: int
    make: Callable[[], BubblewrapProvider] = BubblewrapProvider

    def __call__(self) -> PooledProvider:
        """On the node."""
        return PooledProvider(self.make(), self.spec, self.size)


@dataclass(frozen=True, slots=True)
class RayConfig:
    """Settings of a provider."""

    make: Callable[[], SandboxProvider] = BubblewrapProvider
    """Makes the provider of a node, on that node (``NodePool`` keeps some ready); Ray must be able to pickle
    it."""
    inner_features: frozenset[Feature] = frozenset(Feature)
    """What that provider can do."""
    per_cpu: float = 8.0
    """Sandboxes that a node holds at once, for each processor that Ray counts there."""
    per_node: int | None = None
    """Sandboxes that a node holds at once, whatever its processors."""
    resource: str | None = None
    """Only nodes that have some of this resource of Ray's are used; None: all."""
    queue_s: float = 0.0
    """How long a create may wait for room before it is refused (``Full``)."""
    loopback_relay: bool = False
    """Whether a relay on 127.0.0.1 is meant: each node's own. False: it is refused, since on another node
    nothing of this one listens there."""
    call_s: float = 60.0
    """How long a node may take to answer what needs no command."""

    def __post_init__(self) -> None:
        for name in ("per_cpu", "call_s"):
            if not getattr(self, name) > 0:
                raise InvalidSpec(f"config.{name} is {getattr(self, name)!r}: give a number above 0")
        if self.per_node is not None and self.per_node < 1:
            raise InvalidSpec(f"config.per_node is {self.per_node}: give 1 or more, or None")
        if self.queue_s < 0:
            raise InvalidSpec("config.queue_s must not be negative")

    @property
    def features(self) -> frozenset[Feature]:
        """What can be done from afar."""
        return self.inner_features - _LOCAL

    def room(self, cpus: float) -> int:
        """How many sandboxes a node of this size holds."""
        return self.per_node if self.per_node is not None else max(1, int(cpus * self.per_cpu))
