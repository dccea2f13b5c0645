"""Token ids as JSON text, kept for what a session goes on from: only new ids are written anew."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import orjson
from numpy.typing import NDArray

KEPT_BYTES = 1 << 26
"""What all sessions together may keep; the least used is made again when it is wanted."""

_KEPT_WALKS = 4
"""Of one session: what its main branch and a few sub-agents at once go on from."""


def ids_text(ids: NDArray[np.int32]) -> bytes:
    """Ids int32 [T] as the inside of a JSON list."""
    return orjson.dumps(np.ascontiguousarray(ids), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]


def joined(*texts: bytes) -> bytes:
    """One text of the ids of several."""
    return b",".join(text for text in texts if text)


class IdTexts:
    """The texts of the walks to sessions' newest turns. Used from one event loop."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._limit = kept_bytes
        self._kept: OrderedDict[str, dict[int, tuple[bytes, bytes]]] = OrderedDict()
        self.nbytes = 0

    def prompt(self, session_id: str, parent: int, ids: NDArray[np.int32], known: int) -> bytes:
        """The text of a prompt, int32 [T], whose first ``known`` ids are the walk to turn ``parent``."""
        walk = self._kept.get(session_id, {}).get(parent)
        if walk is None:
            return ids_text(ids)
        return joined(*walk, ids_text(ids[known:]))

    def keep(self, session_id: str, parent: int, turn: int, prompt: bytes, output: NDArray[np.int32]) -> None:
        """A turn was committed after this prompt: it takes its parent's place."""
        walks = self._kept.setdefault(session_id, {})
        self._kept.move_to_end(session_id)
        walk = (prompt, ids_text(output))
        self.nbytes += sum(map(len, walk)) - sum(map(len, walks.pop(parent, ())))
        walks[turn] = walk
        while len(walks) > _KEPT_WALKS:
            self.nbytes -= sum(map(len, walks.pop(next(iter(walks)))))
        while self.nbytes > self._limit:
            self.forget(next(iter(self._kept)))

    def forget(self, session_id: str) -> None:
        """Keep nothing of a session."""
        for walk in self._kept.pop(session_id, {}).values():
            self.nbytes -= sum(map(len, walk))
