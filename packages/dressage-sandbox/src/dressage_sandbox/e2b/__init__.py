"""Sandboxes at E2B, by its official SDK: ``pip install dressage-sandbox[e2b]``.

Nothing here imports the SDK before a provider is used.
"""

from ..remote.owner import Orphan
from .config import E2BConfig
from .prewarm import PrewarmedE2B
from .provider import E2BProvider
from .sandbox import E2BSandbox

__all__ = ["E2BConfig", "E2BProvider", "E2BSandbox", "Orphan", "PrewarmedE2B"]
