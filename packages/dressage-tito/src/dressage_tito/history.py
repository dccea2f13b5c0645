"""Whether a template would write what stands in the context in another way (the policy ``as-template``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dressage_tito.messages import Message, Refusal, Tool
from dressage_tito.profile import Profile
from dressage_tito.rendering import Renderer
from dressage_tito.template import Json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dressage_tito.tokens import Tokens

    Ids = Sequence[int] | NDArray[np.int32]

_LOOK_BACK = 4096
"""So many ids at a time are read backwards for reasoning."""


@dataclass(frozen=True, slots=True)
class History:
    """Compares a sampled prefix with what the template does to earlier turns."""

    profile: Profile
    tokens: Tokens
    renderer: Renderer

    def rewritten(
        self, prefix_ids: Ids, appended: Sequence[Message], tools: Sequence[Tool] | None, kwargs: Json
    ) -> Refusal | None:
        """Why the template would write earlier tokens in another way; None where it would not."""
        if int(prefix_ids[-1]) in dict(self.profile.closing_stops):
            return Refusal(
                "stoprewritten", "the template writes another token for the sampled stop in history"
            )
        if self.profile.reasoning_block is None:
            return None
        reasoning = self._holds_reasoning(prefix_ids, kwargs)
        if self.renderer.keeps(appended, tools, kwargs, reasoning=reasoning):
            return None
        return Refusal("thinking_stripped", "the template writes an earlier turn's reasoning in another way")

    def _holds_reasoning(self, prefix_ids: Ids, kwargs: Json) -> bool:
        """Whether a turn since the last user message has reasoning in it, read backwards from the end."""
        assert self.profile.reasoning_block is not None
        closing = self.profile.reasoning_block[1].strip()
        user = self.renderer.user_opening(kwargs)
        text, end = "", len(prefix_ids)
        while end > 0:
            start = max(0, end - _LOOK_BACK)
            text = self.tokens.decode(prefix_ids[start:end]) + text
            end = start
            after = text.rpartition(user)[2] if user and user in text else ""
            if after or end == 0:
                text = after or text
                break
        return any(
            inside.rpartition(self.profile.reasoning_block[0].strip())[2].strip()
            for inside in text.split(closing)[:-1]
        )
