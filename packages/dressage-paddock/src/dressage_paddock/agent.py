"""The seam between a rollout and whoever acts in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from dressage_sandbox.protocol import Sandbox

from dressage_paddock.failure import Ending
from dressage_paddock.gateway import GatewaySession
from dressage_paddock.messages import ChatMessage
from dressage_paddock.task import PublicTask


@dataclass(slots=True)
class Scene:
    """What an agent acts on, and where it leaves its trace as it goes (it may be cut at any await)."""

    task: PublicTask
    session: GatewaySession
    sandbox: Sandbox
    emit: Callable[..., None]
    """``emit(name, **data)`` reports an event."""
    transcript: list[ChatMessage] = field(default_factory=list)
    turns: int = 0
    output: str = ""
    """What a program printed; stays "" in a whitebox rollout."""


class Agent(Protocol):
    """Acts in a scene until it ends. Holds no state of a rollout: one agent serves many at once."""

    @property
    def speaks_as_model(self) -> bool:
        """Whether the transcript's assistant messages are the model's own words."""

    def relay(self, session: GatewaySession) -> str | None:
        """The one ``host:port`` that the inside of the sandbox must reach, or None."""

    async def act(self, scene: Scene) -> Ending:
        """Do the task. Exceptions are classified by the rollout."""
