"""What a rollout tells whoever listens: for metrics and logs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RolloutEvent:
    """One fact. ``name``: opened, ready, reply, tool, turn, agent_ended, verdict, graded, ended,
    cleanup_failed, retry."""

    name: str
    instance_id: str
    rollout_id: str
    data: Mapping[str, str | int | float] = field(default_factory=dict)


OnEvent = Callable[[RolloutEvent], None]
"""Called in the event loop, so it must be quick. What it raises is logged, no more."""


def ignore_event(event: RolloutEvent) -> None:
    """The default listener: does nothing."""


def guarded(listener: OnEvent) -> OnEvent:
    """``listener``, whose exceptions are logged: a fault in metrics must not end a rollout."""

    def tell(event: RolloutEvent) -> None:
        try:
            listener(event)
        except Exception:  # noqa: BLE001
            _LOG.exception("the listener failed on the event %r", event.name)

    return tell
