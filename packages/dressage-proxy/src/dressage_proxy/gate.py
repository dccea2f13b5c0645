"""What a pause left closed, and the version last announced: kept beside the store, so that a proxy that was
killed while it was paused comes back paused."""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from dressage_segments.turn import UNKNOWN_VERSION
from dressage_store import replace_file

from dressage_proxy.errors import ConfigError, ConflictError

GATE_FILE = "gate.json"
_SCHEMA = "dressage.gate/1"


@dataclass(frozen=True, slots=True)
class GateState:
    """``paused``: all sessions are; ``sessions`` are those that are paused by themselves; ``version`` is -1
    where none was announced."""

    paused: bool = False
    sessions: frozenset[str] = frozenset()
    version: int = UNKNOWN_VERSION

    def closed(self, session_id: str | None) -> Self:
        """After a pause of one session, or of all."""
        if session_id is None:
            return replace(self, paused=True)
        return replace(self, sessions=self.sessions | {session_id})

    def opened(self, version: int) -> Self:
        """After a resume under a version. Raises ConflictError for one that is lower than the last: tokens of
        newer weights would count as staler than those of older ones."""
        if version < self.version:
            raise ConflictError(
                f"version {version} is lower than {self.version}, which was announced before",
                field="version",
                code="version_went_back",
                fix=f"announce {self.version} or more, whatever checkpoint the weights are of: versions "
                "count updates, and only rise. For a count that starts again, start a proxy on a new --store",
            )
        return replace(self, paused=False, sessions=frozenset(), version=version)

    def only(self, sessions: Container[str]) -> Self:
        """Without pauses of sessions that are gone."""
        return replace(self, sessions=frozenset(each for each in self.sessions if each in sessions))

    def within(self, whole: GateState) -> Self:
        """Of a process that is one of several: whether all is paused is theirs to say, and its own sessions'
        pauses are its own."""
        return replace(self, paused=whole.paused, version=max(self.version, whole.version))


class GateFile:
    """A gate's state in a file that is whole at any time."""

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        """``fsync``: what is written survives a power cut, too."""
        self._path = path
        self._fsync = fsync

    def read(self) -> GateState:
        """What was written last. Raises ConfigError where that cannot be read: whether it was paused must not
        be guessed."""
        try:
            return from_json(self._path.read_bytes())
        except FileNotFoundError:
            return GateState()
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"--store: {self._path} does not say whether the proxy was paused ({error}); delete it to "
                "start unpaused"
            ) from error

    def write(self, state: GateState) -> None:
        """Once this returns, the state survives the process. Raises OSError; then the one before stays."""
        replace_file(self._path, to_json(state).encode(), fsync=self._fsync)


def to_json(state: GateState) -> str:
    """As it is kept, and told to a process that starts."""
    value = {"paused": state.paused, "sessions": sorted(state.sessions), "version": state.version}
    return json.dumps({"schema": _SCHEMA, **value})


def from_json(text: str | bytes) -> GateState:
    """What :func:`to_json` wrote. Raises ValueError for anything else."""
    value = json.loads(text)
    match value:
        case {"schema": schema, "paused": bool(paused), "sessions": list(names), "version": int(version)}:
            if schema == _SCHEMA and type(version) is int and all(isinstance(name, str) for name in names):
                return GateState(paused, frozenset(names), version)
    raise ValueError("it holds something else")
