"""Whether a template would write what stands in the context in another way (the policy ``as-template``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dressage_tito.grammars import REASONING_TAGS
from dressage_tito.idsearch import places
from dressage_tito.messages import Message, Refusal, Tool
from dressage_tito.profile import Profile
from dressage_tito.rendering import Renderer
from dressage_tito.template import Json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dressage_tito.tokens import Tokens

    Ids = Sequence[int] | NDArray[np.int32]


_WORD = "Xq7dressage"
_SOME = "some"
"""Stands for reasoning with text in it."""


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
            return Refusal("stop_rewritten", "in history the template writes another token for this stop")
        if self.profile.reasoning_block is None:
            return None
        calls = _ends(prefix_ids, self.profile.calls_close_ids) and not _ends(
            prefix_ids, self.profile.turn_close_ids
        )
        for ids, then in self._turns(prefix_ids, appended):
            some, other = self.renderer.thoughts_of_history(then, tools, kwargs, (_WORD, ""), calls=calls)
            kept = {_SOME} if some and _WORD in some else set()
            if other is not None:
                kept.add(other)
            if not self._thoughts(ids, kwargs) <= kept:
                return Refusal("thinking_stripped", "the template writes earlier reasoning in another way")
        return None

    def _turns(
        self, prefix_ids: Ids, appended: Sequence[Message]
    ) -> list[tuple[NDArray[np.int64], Sequence[Message]]]:
        """The prefix in parts, each with what follows the turns in it: where nothing was said after the last
        turn, those before it are followed by one."""
        import numpy as np

        ids = np.asarray(prefix_ids, dtype=np.int64)
        header = [int(token) for token in self.tokens.encode(self.profile.generation_header, (), "\0")[0]]
        begins = places(ids, [] if appended else header)
        if not len(begins) or self.profile.reasoning_block not in REASONING_TAGS:
            return [(ids, appended)]
        last = int(begins[-1])
        parts: list[tuple[NDArray[np.int64], Sequence[Message]]] = [(ids[last:], appended)]
        if len(begins) > 1:
            parts.append((ids[:last], [Message("assistant", _WORD)]))
        return parts

    def _thoughts(self, ids: NDArray[np.int64], kwargs: Json) -> set[str]:
        """What the turns since the last user message hold of reasoning: ``_SOME``, or an empty block's text
        ("" where there is no block). Content that spells a tag holds none."""
        assert self.profile.reasoning_block is not None
        if self.profile.reasoning_block not in REASONING_TAGS:
            # Channels (gpt-oss) are dropped once a final answer follows, whoever speaks in between.
            text = self.tokens.decode_structure(ids.tolist())
            return {_SOME if self.profile.reasoning_block[0].strip() in text else ""}
        text = self.tokens.decode_structure(ids[self._last_user(ids, kwargs) :].tolist())
        opening, closing = (re.escape(part.strip()) for part in self.profile.reasoning_block)
        begin = f"(?:{opening}((?:(?!{opening}).)*?))?"  # a prompt may close a block that it does not open
        blocks = list(re.finditer(begin + closing, text, re.DOTALL))
        found = {_SOME if (m.group(1) or "").strip() else m.group().strip() for m in blocks}
        header = self.profile.generation_header.strip()
        if header and header not in text:
            return found  # no turn
        if not blocks or (header and text.count(header) > len(blocks)):
            found.add("")
        return found

    def _last_user(self, ids: NDArray[np.int64], kwargs: Json) -> int:
        """Where the last user message begins: what a tool's result looks like is none."""
        user, tool = (self.renderer.opening(role, kwargs) for role in ("user", "tool"))
        core = [int(token) for token in self.tokens.encode(user.strip(), (), "\0")[0]]
        wrapped = tool.strip() if tool.startswith(user) and tool.strip() != user.strip() else ""
        for place in reversed(places(ids, core).tolist()):
            following = self.tokens.decode(ids[place : place + len(core) + len(wrapped)].tolist())
            if not wrapped or not following.startswith(wrapped):
                return int(place)
        return 0


def _ends(ids: Ids, closing: Sequence[int]) -> bool:
    return bool(closing) and [int(token) for token in ids[-len(closing) :]] == list(closing)
