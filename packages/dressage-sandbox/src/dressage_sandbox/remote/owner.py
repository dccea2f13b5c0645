"""Tags that tell whose a sandbox is, to whoever lists the account's sandboxes later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..owner import Owner

__all__ = ["KIND", "LABEL", "MADE_BY", "WANTED", "Orphan", "Tags"]

KIND = "dressage"
MADE_BY = "dressage_owner"
WANTED = "dressage_create"
LABEL = "dressage_label"


@dataclass(frozen=True, slots=True)
class Orphan:
    """A sandbox whose owner is known to have ended."""

    id: str
    label: str
    """The ``owner`` of its spec."""


class Tags:
    """The metadata or labels of sandboxes that this process makes.

    An owner is a process: pid, start time, boot and pid namespace. Whether it still lives can be said only in
    the same boot and the same pid namespace; of any other it is not known, and its sandboxes are left alone
    (they end by themselves when their time is over).
    """

    def __init__(self) -> None:
        owner = Owner.this_process()
        self._place = f"{owner.boot}/{_pid_namespace()}"
        self.made_by = f"{self._place}/{owner.pid}/{owner.started}"

    def metadata(self, wanted: str, label: str) -> dict[str, str]:
        """For a sandbox that is asked for under the unique name ``wanted``."""
        return {KIND: "1", MADE_BY: self.made_by, WANTED: wanted, LABEL: label}

    def owner_is_dead(self, metadata: Mapping[str, str]) -> bool:
        """Whether the process that made a sandbox is known to have ended."""
        parts = metadata.get(MADE_BY, "").split("/")
        if len(parts) != 4 or "/".join(parts[:2]) != self._place or not (parts[2] + parts[3]).isdigit():
            return False
        return not Owner(int(parts[2]), int(parts[3]), parts[0]).alive()


def _pid_namespace() -> str:
    return Path("/proc/self/ns/pid").readlink().name
