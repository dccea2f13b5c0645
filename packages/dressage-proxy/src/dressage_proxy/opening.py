"""What a session is opened with, and how the log keeps it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self, TypeVar

from dressage_segments import LogRecord, SessionInfo, TrajectoryTree, open_to_record
from dressage_tito import ThinkingPolicy

from dressage_proxy.config import Limits, ProxyConfig, Sampling
from dressage_proxy.session import Session
from dressage_proxy.versions import VersionBudget

_N = TypeVar("_N", int, float)


def lower(one: _N | None, other: _N | None) -> _N | None:
    """The lower of two ceilings, of which each may be absent."""
    given = [value for value in (one, other) if value is not None]
    return min(given, default=None)


@dataclass(frozen=True, slots=True)
class Opened:
    """A session's own settings, which hold from its opening on."""

    sampling: Sampling
    limits: Limits
    labels: Mapping[str, str]
    thinking: ThinkingPolicy

    @classmethod
    def of(cls, record: LogRecord) -> Self:
        """Those of an ``open`` record. Raises pydantic's ValidationError where it is damaged."""
        extra = record.meta.get("extra", {})
        return cls(
            Sampling.model_validate(extra.get("sampling", {})),
            Limits.model_validate(extra.get("limits", {})),
            extra.get("labels", {}),
            extra.get("thinking", "keep"),
        )

    def record(self, info: SessionInfo) -> LogRecord:
        """The record that opens a session."""
        extra = {
            "sampling": self.sampling.model_dump(exclude_none=True),
            "limits": self.limits.model_dump(exclude_none=True),
            "labels": dict(self.labels),
            "thinking": self.thinking,
        }
        return open_to_record(info, extra)

    def session(self, tree: TrajectoryTree, config: ProxyConfig) -> Session:
        """A session in memory, used just now."""
        versions = VersionBudget(lower(config.max_version_switches, self.limits.max_version_switches))
        now = asyncio.get_running_loop().time()
        return Session(
            tree.info,
            tree,
            self.sampling.model_dump(exclude_none=True),
            self.limits,
            dict(self.labels),
            self.thinking,
            versions=versions,
            touched=now,
        )
