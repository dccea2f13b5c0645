"""Where a sampled turn ends, and how what follows is joined to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dressage_tito.messages import Encoded, Refusal
from dressage_tito.profile import Profile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dressage_tito.tokens import Tokens

    Ids = Sequence[int] | NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TurnEnds:
    """A family's closing tokens, looked for in ids."""

    profile: Profile
    tokens: Tokens

    def unclosed(self, ids: Ids) -> list[int]:
        """A turn's ids less what closes it."""
        left = _listed(ids)
        while left and left[-1] in self.profile.stop_ids:
            left.pop()
        close = list(self.profile.turn_close_ids)
        for count in range(min(len(close), len(left)), 0, -1):
            if left[-count:] == close[:count] and self.tokens.is_control(close[0]):
                return left[:-count]
        return left

    def joined(self, prefix_ids: Ids, tail: Encoded) -> Encoded | Refusal:
        """Take off what the prefix already ends with: the id that the model stopped on."""
        longest = max(1, len(self.profile.turn_close_ids), len(self.profile.calls_close_ids))
        end, first = _listed(prefix_ids[-longest:]), _listed(tail.ids[:longest])
        if first and not self.tokens.is_control(first[0]) and self._ends_calls(end[-1]):
            return tail
        if not first or not self.tokens.is_control(first[0]):
            return Refusal(
                "closing_not_a_control_token",
                "the chat template closes a turn with plain text: its end cannot be proven",
            )
        for count in range(min(len(end), len(first)), 0, -1):
            if end[-count:] == first[:count]:
                return _from(tail, count)
        if (end[-1], first[0]) in self.profile.closing_stops:
            return _from(tail, 1)
        if self._ends_a_turn(end[-1]):
            return Refusal(
                "stop_mismatch",
                f"the turn stopped on id {end[-1]} ({self.tokens.decode(end[-1:])!r}), but the template "
                f"goes on with id {first[0]} ({self.tokens.decode(first[:1])!r})",
            )
        return tail

    def _ends_calls(self, token: int) -> bool:
        """Whether a turn of calls is over with this control id and nothing closes it (Apertus: results follow
        the calls' end as plain text)."""
        if self.profile.calls_close_ids or not self.profile.call_suffix:
            return False
        suffix = self.tokens.encode(self.profile.call_suffix, (), "\0")[0]
        return int(suffix[-1]) == token and self.tokens.is_control(token)

    def _ends_a_turn(self, token: int) -> bool:
        """A stop id, or a special id that is not used inside a turn: what follows it is not known."""
        if token in self.profile.stop_ids:
            return True
        return token in self.tokens.special_ids and token not in self.profile.inner_ids


def _listed(ids: Ids) -> list[int]:
    tolist = getattr(ids, "tolist", None)
    return [int(token) for token in ids] if tolist is None else tolist()


def _from(encoded: Encoded, position: int) -> Encoded:
    return Encoded(encoded.ids[position:], encoded.frame[position:], encoded.reasoning_open)
