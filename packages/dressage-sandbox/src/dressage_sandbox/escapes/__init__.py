"""The ways out of a sandbox that are known from elsewhere, each tried from inside a real one.

::

    python -m dressage_sandbox.escapes            # a row an attempt; exit code 1 if one succeeds

An attempt is a program that runs inside, with what it needs to know of its targets, and a look from outside
whether it came to anything. ``ATTEMPTS`` lists them; ``try_one`` runs one in fresh sandboxes.
"""

from __future__ import annotations

from . import files, kernel, network, processes, resources
from ._attempt import Attempt, Row, try_one
from ._scene import Scene, scene

__all__ = ["ATTEMPTS", "Attempt", "Row", "Scene", "scene", "try_one"]

ATTEMPTS: tuple[Attempt, ...] = (
    *processes.ATTEMPTS,
    *files.ATTEMPTS,
    *network.ATTEMPTS,
    *kernel.ATTEMPTS,
    *resources.ATTEMPTS,
)
