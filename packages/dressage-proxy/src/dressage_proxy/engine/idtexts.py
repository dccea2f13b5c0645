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
_PIECE_BYTES = 1 << 13
"""A piece that is as long stays as it is: what comes behind it is a piece of its own."""

Text = tuple[bytes, ...]
"""The inside of a JSON list, in pieces that follow one another."""


def ids_text(ids: NDArray[np.int32]) -> bytes:
    """Ids int32 [T] as the inside of a JSON list."""
    return orjson.dumps(np.ascontiguousarray(ids), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]


def further(text: Text, ids: NDArray[np.int32]) -> Text:
    """The text with further ids, int32 [N]; what it costs depends on these, and not on what was there."""
    new = ids_text(ids)
    if not new or not text:
        return (new,) if new else text
    last = text[-1]
    if len(last) < _PIECE_BYTES:
        return (*text[:-1], b"%b,%b" % (last, new))
    return (*text, b"," + new)


class IdTexts:
    """The texts of the walks to sessions' newest turns. Used from one event loop."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._limit = kept_bytes
        self._kept: OrderedDict[str, dict[int, Text]] = OrderedDict()
        self.nbytes = 0

    def walk(self, session_id: str, turn: int) -> Text | None:
        """The text of the walk to a turn; None where it is not kept."""
        return self._kept.get(session_id, {}).get(turn)

    def keep(self, session_id: str, parent: int, turn: int, text: Text) -> None:
        """A turn was committed whose walk has this text: it takes its parent's place."""
        walks = self._kept.setdefault(session_id, {})
        self._kept.move_to_end(session_id)
        self.nbytes += sum(map(len, text)) - sum(map(len, walks.pop(parent, ())))
        walks[turn] = text
        while len(walks) > _KEPT_WALKS:
            self.nbytes -= sum(map(len, walks.pop(next(iter(walks)))))
        while self.nbytes > self._limit:
            self.forget(next(iter(self._kept)))

    def forget(self, session_id: str) -> None:
        """Keep nothing of a session."""
        for text in self._kept.pop(session_id, {}).values():
            self.nbytes -= sum(map(len, text))
