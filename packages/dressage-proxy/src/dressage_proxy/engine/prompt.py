"""What an engine is asked to go on from."""

from __future__ import annotations

import numpy as np
from dressage_segments import IdsDigest
from numpy.typing import NDArray

from dressage_proxy.engine.idtexts import Text, further
from dressage_proxy.records import record

_NONE = np.empty(0, np.int32)


@record
class Prompt:
    """Token ids: ``walk`` int32 [W], which were there before, and ``new`` int32 [N] behind them, with the
    running ``digest`` of all. ``text`` is their JSON; () where it was not written."""

    walk: NDArray[np.int32]
    new: NDArray[np.int32]
    digest: IdsDigest
    text: Text = ()

    @classmethod
    def of(cls, ids: NDArray[np.int32]) -> Prompt:
        """All of it new."""
        return cls(_NONE, ids, IdsDigest(ids))

    def __len__(self) -> int:
        return len(self.walk) + len(self.new)

    @property
    def ids(self) -> NDArray[np.int32]:
        """All ids, int32 [W + N]; made anew each time: few need them as one array."""
        return np.concatenate([self.walk, self.new]) if len(self.walk) else self.new

    def json(self) -> Text:
        """The inside of a JSON list of all ids."""
        return self.text or further((), self.ids)

    def written(self, text: Text) -> Prompt:
        """The same with its JSON."""
        return Prompt(self.walk, self.new, self.digest, text)

    def followed_by(self, ids: NDArray[np.int32]) -> Prompt:
        """The prompt with further ids, int32 [N]."""
        return Prompt(self.ids, ids, self.digest.copy().update(ids), further(self.json(), ids))
