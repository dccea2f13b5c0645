"""Which sampling parameters a call is made with: the rollout's own win over the agent's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dressage_proxy.config import Limits, ProxyConfig
from dressage_proxy.records import record

_DEFAULTS: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}
_ENGINE_NAMES = {"seed": "sampling_seed"}


@record
class Effective:
    """What a turn samples with. ``recorded`` goes into the evidence, ``overridden`` names what the agent
    asked for and did not get."""

    recorded: Mapping[str, Any]
    overridden: Mapping[str, Any]
    max_tokens: int

    @property
    def stop(self) -> tuple[str, ...]:
        """Stop strings."""
        return tuple(self.recorded.get("stop", ()))

    def engine_params(self, max_new_tokens: int, stop_token_ids: Sequence[int]) -> dict[str, Any]:
        """SGLang's ``sampling_params`` for a call of at most ``max_new_tokens``."""
        params = {
            _ENGINE_NAMES.get(name, name): value
            for name, value in self.recorded.items()
            if name not in ("max_tokens", "stop")
        }
        if self.stop:
            params["stop"] = list(self.stop)
        params["max_new_tokens"] = max_new_tokens
        params["stop_token_ids"] = list(stop_token_ids)
        params["skip_special_tokens"] = False
        return params


def effective(own: Mapping[str, Any], asked: Mapping[str, Any], limit: int) -> Effective:
    """Merge defaults, the agent's request and the session's ``own`` settings, the later the stronger.

    ``limit`` caps the reply. ``own`` and ``asked`` hold names of :class:`Sampling`, already checked.
    """
    merged = {**_DEFAULTS, **asked, **own}
    wanted = min(value for value in (asked.get("max_tokens"), own.get("max_tokens"), limit) if value)
    merged["max_tokens"] = wanted
    if "stop" in merged:
        merged["stop"] = list(merged["stop"])
    overridden = {
        name: value
        for name, value in asked.items()
        if name in own and name != "max_tokens" and own[name] != value
    }
    return Effective(merged, overridden, wanted)


def reply_cap(config: ProxyConfig, limits: Limits) -> int:
    """The longest reply of a session, in tokens."""
    return min(config.max_output_tokens, limits.max_output_tokens or config.max_output_tokens)


def context_window(config: ProxyConfig, limits: Limits) -> int:
    """The context window of a session, in tokens."""
    return min(config.context_window, limits.context_window or config.context_window)
