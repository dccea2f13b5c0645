"""What a rollout tells whoever listens: for metrics and logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RolloutEvent:
    """One fact. ``name``: opened, ready, reply, tool, turn, agent_ended, graded, ended, cleanup_failed,
    retry."""

    name: str
    instance_id: str
    rollout_id: str
    data: Mapping[str, str | int | float] = field(default_factory=dict)


OnEvent = Callable[[RolloutEvent], None]
"""Called in the event loop: must be quick and must not raise."""


def ignore_event(event: RolloutEvent) -> None:
    """The default listener: does nothing."""
