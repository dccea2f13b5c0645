"""What the calls of a sandbox stand on."""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping

from .channel import Channel
from .errors import SandboxGone
from .protocol import SandboxSpec

__all__ = ["Calls"]


class Calls(ABC):
    """A sandbox as its calls see it."""

    spec: SandboxSpec
    _downloading: asyncio.Semaphore
    _env: Mapping[str, str]
    _door: socket.socket | None
    _gone: SandboxGone

    @abstractmethod
    def _live(self) -> Channel:
        """The channel to the agent.

        Raises:
            SandboxGone: the sandbox has ended.
        """
