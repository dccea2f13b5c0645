"""How a provider reaches E2B."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InvalidSpec

__all__ = ["E2BConfig"]


@dataclass(frozen=True, slots=True)
class E2BConfig:
    """Settings of a provider. What is None is taken from the SDK's own defaults."""

    api_key: str | None = None
    template: str | None = None
    domain: str | None = None
    api_url: str | None = None
    """For a deployment of one's own, or a stand-in."""
    sandbox_url: str | None = None
    """As ``api_url``: one address for all sandboxes, which tells them apart by a header."""
    user: str = "user"
    """Whom commands run as."""
    max_lifetime_s: float = 3600.0
    """The longest time-out that the plan takes; what must live longer is extended by heartbeat."""
    margin_s: float = 60.0
    """How much longer than its time to live a sandbox exists, so that this side ends it and not that one."""
    request_timeout_s: float = 60.0
    attempts: int = 6
    """Of a call that is answered by 429 or 5xx; the first included."""
    backoff_s: float = 0.25
    """Before the second attempt, and twice as long before each further one, less a random part."""
    backoff_max_s: float = 10.0
    whole_host_rules: bool = False
    """E2B's egress rules know hosts and no ports. True: a spec's ``relay`` and ``egress`` open whole hosts;
    False: they are refused."""

    def __post_init__(self) -> None:
        for name in ("max_lifetime_s", "request_timeout_s", "attempts", "backoff_s", "backoff_max_s"):
            if not getattr(self, name) > 0:
                raise InvalidSpec(f"config.{name} is {getattr(self, name)!r}: give a number above 0")
        if self.margin_s < 0 or self.max_lifetime_s <= self.margin_s:
            raise InvalidSpec("config.margin_s must be 0 or more, and less than max_lifetime_s")
