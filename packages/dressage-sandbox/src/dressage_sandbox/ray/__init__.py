"""Sandboxes on the nodes of a Ray cluster: ``pip install dressage-sandbox[ray]``.

Nothing here imports Ray before a provider is used.
"""

from .config import NodePool, RayConfig
from .provider import RayProvider
from .sandbox import RaySandbox, RayService

__all__ = ["NodePool", "RayConfig", "RayProvider", "RaySandbox", "RayService"]
