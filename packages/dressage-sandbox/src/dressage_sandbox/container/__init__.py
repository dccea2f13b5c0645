"""Sandboxes as containers of Docker or Podman, over its socket: ``pip install dressage-sandbox[container]``.

Nothing here imports httpx before a provider is used.
"""

from ..remote.owner import Orphan
from .config import ContainerConfig, find_socket
from .provider import ContainerProvider

__all__ = ["ContainerConfig", "ContainerProvider", "Orphan", "find_socket"]
