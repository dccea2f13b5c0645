"""The model gateway protocol: the only thing that a paddock knows of whatever records the model's tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class GatewaySession:
    """An open recording session. ``openai_url`` ends in ``/v1``; ``anthropic_url`` does not."""

    session_id: str
    openai_url: str
    anthropic_url: str


@runtime_checkable
class ModelGateway(Protocol):
    """Opens and ends recording sessions. ``dressage_proxy.client.ProxyClient`` satisfies it structurally.

    A model call that is made again, since no reply of it arrived, is one call to it: what it may have
    recorded of the first is not trained."""

    async def open(
        self,
        *,
        instance_id: str,
        group_id: str | None = None,
        rollout_id: str | None = None,
        sampling: Mapping[str, Any] | None = None,
        limits: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Any:
        """Open a session; the result has ``session_id``, ``openai_url`` and ``anthropic_url`` (str)."""

    async def finalize(
        self, session_id: str, *, outcome: Mapping[str, Any] | None = None, failure_class: str | None = None
    ) -> Any:
        """End the session; the result has ``segments``, ``trained_tokens`` (int), ``lost_tokens`` (dict)."""

    async def delete(self, session_id: str) -> None:
        """Drop the session."""


@runtime_checkable
class ObservableGateway(Protocol):
    """A gateway that also tells how a session stands. Optional: it lets a blackbox rollout tell an agent that
    failed from one that never reached the model, or that the model left."""

    async def get(self, session_id: str) -> Mapping[str, Any]:
        """``steps`` (int): recorded model calls; optional ``faults`` (int): calls that failed for no reason
        of the agent's since one was last answered."""
