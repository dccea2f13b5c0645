"""What a run leaves in ``summary.json``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import orjson

WINDOW = 5
_PACKAGES = (
    "dressage-blackbox-server", "dressage-paddock", "dressage-proxy", "dressage-recipes", "dressage-sandbox",
    "dressage-segments", "dressage-store", "dressage-tito", "numpy", "tokenizers", "torch", "transformers",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Summary:
    """The outcome of a run. Seconds of wall clock, tokens, MiB."""

    reward_first: float
    """Mean over the first 5 steps."""
    reward_last: float
    """Mean over the last 5 steps."""
    rewards: tuple[float, ...]
    """Of every step."""
    steps: int
    seconds: float
    """From the start of the run to its end, cold start included."""
    setup_seconds: float | None
    """Installing, where it was part of the same command."""
    sampled_tokens: int
    trained_tokens: int
    lost_tokens: Mapping[str, int]
    seed: int
    model: str
    cold_start: Mapping[str, float]
    """``seconds``, and ``reward`` before RL; empty where there was none."""
    logprob_gap_max: float
    """The largest difference between the trainer's and the engine's logprob of a trained token, at the
    weights that sampled it, over the whole run."""
    peak_rss_mib: float
    """Of the loop, the engine and the proxy together (the sum of their peaks)."""
    failure_classes: Mapping[str, int]
    """Rollouts by how they ended, retried attempts included."""
    versions: Mapping[str, str]

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_bytes(orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2) + b"\n")


@dataclass(slots=True)
class Account:
    """Running totals of a run."""

    rewards: list[float] = field(default_factory=list)
    sampled: int = 0
    trained: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    classes: Counter[str] = field(default_factory=Counter)
    gap: float = 0.0
    cold_start: dict[str, float] = field(default_factory=dict)

    def summary(self, **rest: Any) -> Summary:
        """The summary of what was counted; ``rest`` are the fields that are not counted here."""
        return Summary(
            reward_first=mean(self.rewards[:WINDOW]),
            reward_last=mean(self.rewards[-WINDOW:]),
            rewards=tuple(self.rewards),
            steps=len(self.rewards),
            sampled_tokens=self.sampled,
            trained_tokens=self.trained,
            lost_tokens=dict(self.lost),
            logprob_gap_max=self.gap,
            failure_classes=dict(self.classes),
            cold_start=dict(self.cold_start),
            versions={name: metadata.version(name) for name in _PACKAGES},
            **rest,
        )


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of nothing."""
    return sum(values) / len(values) if values else 0.0
