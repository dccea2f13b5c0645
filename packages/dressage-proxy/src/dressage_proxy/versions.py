"""How often a session's tokens may change their weight version, and how often they did."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from dressage_segments.turn import UNKNOWN_VERSION
from numpy.typing import NDArray

from dressage_proxy.errors import VersionLimitError


@dataclass(slots=True)
class VersionBudget:
    """Counts switches over the tokens of a session in the order in which they were committed.

    A session that has none left is spared by pauses, so that what runs ends under the version it began with;
    whatever would sample under another version after that is refused. Unknown versions are not counted.
    """

    limit: int | None = None
    last: int = UNKNOWN_VERSION
    used: int = 0

    @property
    def spent(self) -> bool:
        """Whether no switch is left."""
        return self.limit is not None and self.used >= self.limit

    def copy(self) -> VersionBudget:
        """The same count, for a reply that is not committed yet."""
        return replace(self)

    def sees(self, versions: NDArray[np.int32]) -> None:
        """Count the switches in the versions of further tokens, int32 [N]."""
        known, data = versions, versions.tobytes()
        if data != data[: versions.itemsize] * len(versions):  # not all of one version
            known = versions[versions != UNKNOWN_VERSION]
        if not len(known) or known[0] == UNKNOWN_VERSION:
            return
        if known is not versions:
            self.used += int(np.count_nonzero(np.diff(known)))
        self.used += self.last not in (UNKNOWN_VERSION, int(known[0]))
        self.last = int(known[-1])

    def check(self, version: int) -> None:
        """Raise VersionLimitError where sampling under ``version`` now would be a switch too many."""
        if self.spent and UNKNOWN_VERSION not in (version, self.last) and version != self.last:
            raise VersionLimitError(
                f"the session holds tokens of version {self.last} and has used its {self.limit} switches of "
                f"weight versions; the engines are at {version}",
                fix="finalize the session, or raise max_version_switches",
            )
